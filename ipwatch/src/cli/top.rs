//! `ipwatch top`: the node on one screen, as it changes. [`state`](self::state) is what it shows, [`draw`](self::draw) how;
//! both are pure. [`feed`](self::feed) follows the daemon, [`terminal`](self::terminal) has the terminal.

mod ansi;
mod answers;
mod bar;
mod columns;
mod draw;
mod feed;
mod fit;
mod keys;
mod known;
mod layout;
mod page;
mod questions;
mod rows;
mod state;
mod terminal;
#[cfg(test)]
pub(super) mod tests;
mod words;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use self::feed::Refresh;
use self::fit::Glyphs;
use self::keys::{Decoder, Key};
use self::known::Update;
use self::questions::Question;
use self::state::{Effect, State};
use self::terminal::{Input, Screen};
use super::args::{Format, Global};
use super::output::Out;
use super::{Failure, Outcome};
use crate::api::Stream;
use crate::api::client::Client;

/// News are drawn at most four times a second.
const FRAME: Duration = Duration::from_millis(250);
/// Keys are followed at once, but for one that is held down.
const KEY_FRAME: Duration = Duration::from_millis(30);
/// How long an Escape waits for the rest of a sequence.
const ESCAPE: Duration = Duration::from_millis(50);
/// Updates and answers that wait for the screen.
const WAITING: usize = 8;

pub(super) async fn top(global: &Global, out: &Out) -> Result<Outcome, Failure> {
    check(out.format)?;
    let client = Client::new(global.socket());
    // If there is no daemon, the terminal is not touched.
    let first = client.watch(Stream::Events).await?;
    let (updates, news) = mpsc::channel(WAITING);
    let (refresh, refreshed) = mpsc::channel(1);
    let feed = tokio::spawn(feed::follow(client.clone(), first, updates, refreshed));
    let ended = run(client, out, news, refresh).await;
    feed.abort();
    ended.map_err(|error| anyhow::anyhow!("cannot use the terminal: {error}"))?;
    Ok(Outcome::Fine)
}

/// It draws on a terminal, and nowhere else.
fn check(format: Format) -> Result<(), Failure> {
    let why = if format != Format::Table {
        "`top` draws a screen and has no other format"
    } else if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        "`top` needs a terminal"
    } else {
        return Ok(());
    };
    Err(anyhow::anyhow!(
        "{why}: `ipwatch watch` follows the same as lines, `-o jsonl` for a program"
    )
    .into())
}

/// The loop of the screen, until a key or a signal ends it.
struct Run {
    client: Client,
    out: Out,
    state: State,
    screen: Screen,
    decoder: Decoder,
    refresh: mpsc::Sender<Refresh>,
    answered: mpsc::Sender<(u64, String)>,
    /// The question that is being asked.
    asking: Option<JoinHandle<()>>,
    drawn: Instant,
    /// When to draw next; `None` if nothing has changed.
    due: Option<Instant>,
}

async fn run(
    client: Client,
    out: &Out,
    mut news: mpsc::Receiver<Update>,
    refresh: mpsc::Sender<Refresh>,
) -> io::Result<()> {
    let [mut term, mut int, mut hup] =
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let mut resized = signal(SignalKind::window_change())?;
    let mut continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
    let (answered, mut answers) = mpsc::channel(WAITING);
    let input = Input::open()?;
    let mut screen = Screen::take(out.paint())?;
    let glyphs = if out.is_ascii() { Glyphs::Ascii } else { Glyphs::Unicode };
    let state = State::new(screen.resize(), glyphs);
    let (decoder, now) = (Decoder::default(), Instant::now());
    let mut run = Run {
        client,
        out: *out,
        state,
        screen,
        decoder,
        refresh,
        answered,
        asking: None,
        drawn: now,
        due: Some(now),
    };
    loop {
        let (due, waits) = (run.due, run.decoder.waits());
        tokio::select! {
            () = came(&mut term) => return Ok(()),
            () = came(&mut int) => return Ok(()),
            () = came(&mut hup) => return Ok(()),
            _ = resized.recv() => {
                let size = run.screen.resize();
                run.state.resize(size);
                run.draw_within(KEY_FRAME);
            }
            _ = continued.recv() => {
                run.screen.enter()?;
                run.draw_within(Duration::ZERO);
            }
            bytes = input.read() => {
                let bytes = bytes?;
                if bytes.is_empty() {
                    return Ok(());
                }
                for key in run.decoder.read(&bytes) {
                    if run.key(key)? {
                        return Ok(());
                    }
                }
            }
            () = sleep(ESCAPE), if waits => {
                if let Some(key) = run.decoder.give_up()
                    && run.key(key)?
                {
                    return Ok(());
                }
            }
            Some(update) = news.recv() => {
                run.state.update(update);
                run.draw_within(FRAME);
            }
            Some((number, text)) = answers.recv() => {
                run.state.answer(number, &text);
                run.draw_within(KEY_FRAME);
            }
            () = sleep_until(due.unwrap_or(run.drawn)), if due.is_some() => {
                run.screen.draw(&run.state)?;
                (run.drawn, run.due) = (Instant::now(), None);
            }
        }
    }
}

/// A signal that cannot be heard does not come.
async fn came(signal: &mut io::Result<Signal>) {
    match signal {
        Ok(signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

impl Run {
    /// Draws when so much time has passed since the last time.
    fn draw_within(&mut self, frame: Duration) {
        let at = self.drawn + frame;
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// `true`: the screen is left.
    fn key(&mut self, key: Key) -> io::Result<bool> {
        self.draw_within(KEY_FRAME);
        match self.state.key(key) {
            None => {}
            Some(Effect::Quit) => return Ok(true),
            Some(Effect::Suspend) => self.screen.suspend()?,
            Some(Effect::Refresh) => {
                // If it is full, the same is wanted already.
                let _ = self.refresh.try_send(Refresh);
                self.screen.enter()?;
            }
            Some(Effect::Ask(number, question)) => self.ask(number, question),
        }
        Ok(false)
    }

    /// Asks for a page. The answer to an earlier question is not wanted any more.
    fn ask(&mut self, number: u64, question: Question) {
        let (client, out, answered) = (self.client.clone(), self.out, self.answered.clone());
        let width = usize::from(self.state.size.width);
        let asking = tokio::spawn(async move {
            let text = answers::text(&client, &question, &out, width).await;
            // The screen may have been left meanwhile.
            let _ = answered.send((number, text)).await;
        });
        if let Some(earlier) = self.asking.replace(asking) {
            earlier.abort();
        }
    }
}
