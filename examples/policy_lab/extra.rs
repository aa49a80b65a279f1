//! Short situations for the rules that the large table does not reach.

use std::process::ExitCode;

pub fn report() -> ExitCode {
    print();
    ExitCode::SUCCESS
}

pub fn print() {}
