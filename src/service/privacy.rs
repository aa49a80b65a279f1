//! What a process that serves leaves behind when it dies: where, and nothing of what it had in memory.
//!
//! In its memory are the credentials' secrets and the clients' prompts. Two ways lead out of it that no
//! care elsewhere closes. A core dump is all of it, kept by the machine for whoever looks; the unit
//! forbids it, and so does the process itself, for those who start it otherwise. And a panic says why:
//! in code of ours or of a library it may quote the bytes that it stumbled over, and standard error is
//! the journal. So only the place is told. A panic ends one request here and not the process.

use std::panic::{self, PanicHookInfo};

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Forbids core dumps and debuggers of other users' making, and words in the log of a panic.
pub fn keep() {
    // Not in tests' or commands' processes: a debugger is welcome there.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log::warn!(error:%; "core dumps cannot be forbidden");
    }
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        log::warn!(error:%; "the size of core dumps cannot be limited");
    }
    panic::set_hook(Box::new(|info| {
        let (thread, place) = told(info);
        log::error!(
            thread, place;
            "a thread panicked, please report this line (what it said is left out, it may quote somebody)"
        );
    }));
}

/// The name of the thread, and where it was.
fn told(info: &PanicHookInfo<'_>) -> (String, String) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map(ToString::to_string);
    (name.to_owned(), place.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_panic_tells_its_place_and_not_its_words() {
        let heard = Arc::new(Mutex::new(String::new()));
        let hears = heard.clone();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            *hears.lock().unwrap() = format!("{:?}", told(info))
        }));
        let died = std::thread::Builder::new().name("of-a-test".into());
        let died = died
            .spawn(|| panic!("the key is {}", "sk-secret"))
            .unwrap()
            .join();
        panic::set_hook(usual);
        assert!(died.is_err());
        let heard = heard.lock().unwrap();
        assert!(
            heard.contains("of-a-test") && heard.contains("privacy.rs:"),
            "{heard}"
        );
        assert!(!heard.contains("sk-secret"), "{heard}");
    }
}
