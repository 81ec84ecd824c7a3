//! A turn of the daemon: the core takes in what has happened, or a question is answered from it.

use super::core::{Asked, Core};
use super::{answer, scrape};

/// Waits for something to happen and deals with it. Cancel-safe: a question is answered as soon as it is taken.
pub(super) async fn turn(core: &mut Core) {
    match core.wait().await {
        Asked::Nothing => {}
        Asked::Question(request) => answer::answer(core, request),
        Asked::Again(request) => answer::answer_fresh(core, request),
        Asked::Scrape(question) => scrape::answer(core, question),
    }
}
