//! `fencepost once`: runs the command unless it was run for this key, and says what it said then.

use std::{
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
};

use fencepost::{
    Begun, LockName, Locks, Once, OnceGuard, Refusal,
    cells::MAX_CELL_BYTES,
    clock::{BootClock, Clock},
};
use serde::{Deserialize, Serialize};

use crate::{
    arguments::{Global, Once as Verb},
    exit::{self, Ending},
    supervisor::{End, Outcome, Supervisor, Work},
    take::{Opened, Patience, Takes},
    watched::Watched,
    when,
};

/// What a run leaves for those who ask again.
#[derive(Debug, Serialize, Deserialize)]
struct Printed {
    exit_code: u8,
    stdout: Stdout,
}

/// What the command wrote to stdout.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stdout {
    Text(String),
    /// What is no UTF-8, in hexadecimal digits.
    Hex(String),
}

/// Carries the verb out.
pub(crate) fn once(global: &Global, verb: &Verb) -> Ending {
    let patience = Patience::begin(verb.taking.wait);
    // Told to the command as the lock that it runs under.
    let lock = match LockName::new(format!("once/{}", verb.key)) {
        Ok(lock) => [lock],
        Err(error) => return error.into(),
    };
    let (reader, writer) = match io::pipe() {
        Ok(pipe) => pipe,
        Err(error) => return Ending::internal(format!("cannot make a pipe: {error}")),
    };
    let stdout = Some(writer.as_fd());
    let work = Work { global, names: &lock, taking: &verb.taking, guarded: &verb.guarded, stdout };
    work.supervise(async |supervisor| {
        let reader = reader.try_clone().map_err(no_pipe)?;
        rustix::io::ioctl_fionbio(&reader, true).map_err(|error| no_pipe(error.into()))?;
        let reader = Watched::new(reader.into()).map_err(no_pipe)?;
        Asked { verb, supervisor, patience, reader }.open().await
    })
}

/// One call for one key.
struct Asked<'a> {
    verb: &'a Verb,
    supervisor: &'a Supervisor<'a>,
    patience: Patience,
    reader: Watched,
}

impl Asked<'_> {
    async fn open(&self) -> Result<Ending, Ending> {
        match self.supervisor.open(self.patience).await? {
            Opened::Fenced(locks) => self.ask(&locks).await,
            Opened::Plain(locks) => self.ask(&locks).await,
        }
    }

    async fn ask<P: Takes>(&self, locks: &Locks<P>) -> Result<Ending, Ending> {
        let once = self.request(P::once(locks, self.verb.key.as_str()));
        let begun = tokio::select! {
            biased;
            begun = once.begin::<Printed>() => begun,
            signal = self.supervisor.signals.next_end() => {
                locks.close().await;
                return Err(Ending::interrupted(signal));
            }
        };
        let waited = self.patience.spent();
        let ending = match begun {
            Ok(Begun::Ours(guard)) => self.run(*guard).await,
            Ok(Begun::Repeated(kept)) => {
                print_all(&kept.value.stdout.bytes()?).await?;
                if self.supervisor.work.global.verbose > 0 {
                    let (by, ago) = (when::claimant(&kept.by), when::age(kept.at_unix_ms));
                    exit::say(&format!("{} was run by {by} {ago} ago", self.verb.key));
                }
                Ending::coded("repeated", kept.value.exit_code)
            }
            Ok(Begun::Refused(refusal)) => {
                locks.close().await;
                self.refused(&refusal)
            }
            Err(error) => {
                locks.close().await;
                error.into()
            }
        };
        Ok(Ending { waited_ms: Some(exit::millis(waited)), ..ending })
    }

    fn request<P: Takes>(&self, once: Once<P>) -> Once<P> {
        let taking = &self.verb.taking;
        let mut once = once.keep_for(self.verb.keep.get()).ttl(taking.ttl.get()).wait(self.patience.left());
        if let Some(most) = taking.max_hold {
            once = once.max_hold(most);
        }
        once = taking.labels.iter().fold(once, |once, (key, value)| once.label(key, value));
        once.fingerprint(self.verb.payload())
    }

    fn refused(&self, refusal: &Refusal) -> Ending {
        let key = &self.verb.key;
        match refusal {
            Refusal::InProgress(_) => {
                Ending::coded("busy", self.verb.guarded.busy_code).saying(format!("busy: {key}: {refusal}"))
            }
            Refusal::OtherPayload => {
                let said = format!("{key} was used with another command, or another --fingerprint; nothing was run");
                Ending::coded("other_payload", exit::NOT_THE_SAME).saying(said)
            }
            Refusal::ResultNotKept { by, at_unix_ms } => {
                let (by, ago) = (when::claimant(by), when::age(*at_unix_ms));
                let said = format!("{key} was run by {by} {ago} ago and printed too much to keep; it is not run again");
                Ending::coded("result_not_kept", exit::NOT_THE_SAME).saying(said)
            }
        }
    }

    /// The command, with what it prints passed on as it comes.
    async fn run<P: Takes>(&self, guard: OnceGuard<P>) -> Ending {
        let began = BootClock.now();
        let mut printed = Vec::new();
        let outcome = {
            let running = self.supervisor.run(P::held(guard.lease()));
            tokio::pin!(running);
            loop {
                tokio::select! {
                    biased;
                    chunk = self.reader.read(chunk) => match chunk {
                        Ok(chunk) => pass_on(chunk, &mut printed).await,
                        Err(error) => break Err(error),
                    },
                    outcome = &mut running => break Ok(outcome),
                }
            }
        };
        let Outcome { ending, end, by_our_signal } = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                // The guardian ends the command when this process does.
                guard.leave().await;
                return Ending::internal(format!("cannot read what the command prints: {error}"));
            }
        };
        // Nothing of the command runs any more, so that what is in the pipe is all there is.
        while let Ok(chunk) = chunk(self.reader.as_fd()) {
            pass_on(chunk, &mut printed).await;
        }
        let held = BootClock.now().since(began);
        let ending = Ending { held_ms: Some(exit::millis(held)), ..ending };
        let result = match end {
            End::Code(code) if !by_our_signal && (code == 0 || !self.verb.retry_failed) => code,
            _ => {
                guard.leave().await;
                return ending;
            }
        };
        let kept = guard.keep(&Printed { exit_code: result, stdout: Stdout::of(printed) }).await;
        kept.map_or_else(|why| ending.clone().adding(why), |()| ending.clone())
    }
}

/// What there is to read, if anything. Without waiting.
fn chunk(pipe: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; 64 * 1024];
    match rustix::io::read(pipe, &mut chunk)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length => {
            chunk.truncate(length);
            Ok(chunk)
        }
    }
}

/// Prints a chunk and remembers it, up to a little more than can be kept: enough to know that it cannot.
async fn pass_on(chunk: Vec<u8>, printed: &mut Vec<u8>) {
    let room = (MAX_CELL_BYTES + 1).saturating_sub(printed.len());
    printed.extend(chunk.iter().take(room));
    // A reader that went away is no reason to leave the work half done: its result is for those who ask again.
    let _ = print_all(&chunk).await;
}

/// Writes to stdout on a thread of its own: a reader that is slow must not hold up the renewal of the lease.
async fn print_all(bytes: &[u8]) -> Result<(), Ending> {
    let bytes = bytes.to_vec();
    let written = tokio::task::spawn_blocking(move || {
        let mut stdout = io::stdout().lock();
        stdout.write_all(&bytes).and_then(|()| stdout.flush())
    });
    match written.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Ok(Err(error)) => Err(Ending::internal(format!("cannot write to stdout: {error}"))),
        Err(error) => Err(Ending::internal(format!("cannot write to stdout: {error}"))),
    }
}

impl Stdout {
    fn of(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(
            |error| Self::Hex(error.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()),
            Self::Text,
        )
    }

    fn bytes(&self) -> Result<Vec<u8>, Ending> {
        let digits = match self {
            Self::Text(text) => return Ok(text.as_bytes().to_vec()),
            Self::Hex(digits) => digits.as_bytes(),
        };
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        bytes.ok_or_else(|| Ending::internal("what was printed then cannot be read back"))
    }
}

fn no_pipe(error: io::Error) -> Ending {
    Ending::internal(format!("cannot read from a pipe: {error}"))
}
