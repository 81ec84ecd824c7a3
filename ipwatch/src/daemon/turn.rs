//! One turn of the daemon: the core applies what has happened, or answers one request.

use super::core::{Asked, Core};
use super::{answer, scrape};

/// Waits for an event and handles it. Cancel-safe: a question is answered as soon as it is received.
pub(super) async fn turn(core: &mut Core) {
    match core.wait().await {
        Asked::Nothing => {}
        Asked::Question(request) => answer::answer(core, request),
        Asked::Again(request) => answer::answer_fresh(core, request),
        Asked::Scrape(question) => scrape::answer(core, question),
    }
}
