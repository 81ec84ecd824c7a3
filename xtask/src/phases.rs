//! Measures the phases of a long run.

use std::time::{Duration, Instant};

/// The phases so far, with their durations.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    done: Vec<(String, Duration)>,
}

impl Phases {
    /// Runs a phase under a heading.
    pub(crate) fn run<T>(&mut self, name: &str, phase: impl FnOnce() -> T) -> T {
        println!("== {name}");
        let began = Instant::now();
        let result = phase();
        self.done.push((name.to_owned(), began.elapsed()));
        result
    }

    /// A line for each phase, and the sum.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |seconds: f32, name: &str| format!("{seconds:7.1}  {name}");
        let all: Duration = self.done.iter().map(|(_, took)| took).sum();
        let each = self.done.iter().map(|(name, took)| line(took.as_secs_f32(), name));
        each.chain([line(all.as_secs_f32(), "in all")]).collect()
    }
}
