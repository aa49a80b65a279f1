//! What is wrong with a configuration, where, and how to mend it.
//!
//! An operator meets these lines when something must work at once, so each gives the place, the rule
//! and the mend, and all that can be found are given together. A message never repeats a value of
//! the file: a value may be a secret in the wrong place, and the line and column show it anyway. Only
//! names that passed their own check (keys, ids) are repeated.

use std::fmt;
use std::sync::Arc;

use serde_saphyr::Location;

/// A line and a column of the file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

impl Place {
    /// The beginning of the file, for what has no better place.
    pub const START: Place = Place { line: 1, column: 1 };
}

impl From<Location> for Place {
    fn from(at: Location) -> Place {
        if at == Location::UNKNOWN {
            return Place::START;
        }
        Place {
            line: at.line(),
            column: at.column(),
        }
    }
}

/// One thing that is wrong, or that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: Arc<str>,
    place: Place,
    text: String,
}

impl Problem {
    /// The file, as the caller named it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Where in the file.
    pub fn place(&self) -> Place {
        self.place
    }

    /// What is wrong and how to mend it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        write!(f, "{}:{line}:{column}: {}", self.file, self.text)
    }
}

/// Everything that is wrong, in the order of the file; one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Each problem, never none.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Collects problems and warnings while a configuration is built.
pub(super) struct Report {
    file: Arc<str>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Report {
    pub fn new(file_name: &str) -> Report {
        // A file name is printed at the head of each line, so it must not break or colour lines.
        let file = file_name.replace(char::is_control, "?");
        Report {
            file: file.into(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub fn problem(&mut self, place: Place, text: impl Into<String>) {
        let problem = self.make(place, text.into());
        self.problems.push(problem);
    }

    pub fn warning(&mut self, place: Place, text: impl Into<String>) {
        let warning = self.make(place, text.into());
        self.warnings.push(warning);
    }

    /// How many problems there are so far.
    pub fn count(&self) -> usize {
        self.problems.len()
    }

    /// The one problem that ends the reading at once.
    pub fn fail(mut self, place: Place, text: impl Into<String>) -> Problems {
        self.problem(place, text);
        self.into_problems()
    }

    /// `value` and the warnings, if nothing is wrong.
    pub fn finish<T>(mut self, value: T) -> Result<(T, Vec<Problem>), Problems> {
        if !self.problems.is_empty() {
            return Err(self.into_problems());
        }
        self.warnings.sort_by_key(|w| w.place);
        Ok((value, self.warnings))
    }

    fn into_problems(mut self) -> Problems {
        self.problems.sort_by_key(|p| p.place);
        Problems(self.problems)
    }

    /// What may have to be said later.
    pub fn make(&self, place: Place, text: String) -> Problem {
        Problem {
            file: self.file.clone(),
            place,
            text,
        }
    }
}

/// `; did you mean ...?` if one of `known` is near `word`, else nothing.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(distance, name)| *distance * 3 <= name.len().max(3))
        .min()
        .map(|(_, name)| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

/// Whether `word` may be repeated in a message: it looks like a key, and not like a secret.
pub(super) fn is_plain(word: &str) -> bool {
    (1..=24).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}
