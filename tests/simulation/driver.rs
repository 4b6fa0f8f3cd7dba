//! The world's loop: it polls the workers one step at a time, hands out messages, lets people write and tools
//! answer, lets time pass, and kills.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use dormouse::message::ThreadId;
use dormouse::slice::drain::Drain;
use dormouse::slice::records::process_records;
use dormouse::slice::{Limits, NoObserver, Runtime};
use dormouse::store::{ConversationStore, Store};
use tokio::time::Instant;

use crate::model::OneAgent;
use crate::plan::{Plan, Schedule};
use crate::ports::Ports;
use crate::queue::{Delivered, Which};
use crate::rng::{Rng, hash};
use crate::sim::{Sim, Stats, World};
use crate::tools::Source;

/// Time passes in this unit: longer than any wait inside a slice, whatever its jitter.
const TICK: Duration = Duration::from_secs(6);
/// Steps after which the faults end.
const STORMY_STEPS: usize = 3_000;
/// Steps after which a world that is not at rest never will be (I7).
const MAX_STEPS: usize = 60_000;
/// Polls without a sign of life after which a worker is taken to wait for time.
const QUIET_POLLS: u32 = 3;

/// A worker that is killed has been polled fewer times.
const MAX_POLLS: usize = 50;
/// Receives after which an orderly world troubles a message no more: an input that is given up on makes another
/// end.
const PATIENCE: u32 = 4;

/// The runtime over a world, made once for many worlds.
pub struct Stage {
    world: World,
    runtime: Arc<Runtime>,
    drain: Drain,
}

/// How a world ended.
pub struct End {
    pub stats: Stats,
    pub broken: Option<String>,
    pub trace: String,
    /// Per thread what is stored, then what was published.
    pub story: Vec<String>,
}

struct Worker {
    of: Which,
    slice: Pin<Box<dyn Future<Output = SqsBatchResponse>>>,
    messages: Vec<Delivered>,
    started: usize,
    polls: u32,
    dies_at: Option<u32>,
    quiet: u32,
}

impl Stage {
    /// `wrap` puts a store between the slice and the world's.
    pub fn new(wrap: impl FnOnce(Ports, World) -> Arc<dyn Store>) -> Self {
        let world = World::new();
        let ports = Ports(world.clone());
        let runtime = Runtime {
            store: wrap(ports.clone(), world.clone()),
            agents: Arc::new(OneAgent::new(&world)),
            tools: Arc::new(Source::new(&world)),
            input: Arc::new(ports.clone()),
            output: Arc::new(ports.clone()),
            dead_letters: Arc::new(ports.clone()),
            redelivery: Arc::new(ports.clone()),
            observer: Arc::new(NoObserver),
            clock: Arc::new(ports),
            limits: Limits::default(),
        };
        let drain = Drain {
            store: runtime.store.clone(),
            input: runtime.input.clone(),
            clock: runtime.clock.clone(),
        };
        Self { world, runtime: Arc::new(runtime), drain }
    }

    pub fn sound() -> Self {
        Self::new(|ports, _| Arc::new(ports))
    }

    /// Lets a world live to its end; `traced` lines of its trace are kept.
    pub fn play(&self, seed: u64, plan: Plan, traced: usize) -> End {
        self.world.reset(seed, plan, traced);
        let time =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let story = time.block_on(tokio::task::unconstrained(Loop::new(self).live()));
        self.world.with(|sim| End {
            stats: sim.stats,
            broken: sim.violation.take(),
            trace: sim.trace(),
            story,
        })
    }
}

pub struct Loop<'a> {
    stage: &'a Stage,
    pub world: &'a World,
    workers: Vec<Worker>,
    /// What people do and when a worker dies: apart from the world's chance, so that a world without crashes
    /// has the same people.
    pub people: Rng,
    pub texts_left: usize,
    pub texts: usize,
}

enum Act {
    Poll(usize),
    Receive,
    Drain,
    Text,
    Later,
    Tick,
    Rest,
}

/// Whether this delivery may fail once more.
fn may_fail(sim: &Sim, messages: &[Delivered]) -> bool {
    sim.plan.schedule == Schedule::Free || messages.iter().all(|message| message.receives < PATIENCE)
}

impl<'a> Loop<'a> {
    fn new(stage: &'a Stage) -> Self {
        let (seed, texts) = stage.world.with(|sim| (sim.seed, sim.plan.texts));
        let people = Rng::new(hash(seed, ["people"]));
        Self { stage, world: &stage.world, workers: Vec::new(), people, texts_left: texts, texts: 0 }
    }

    async fn live(mut self) -> Vec<String> {
        self.until_rest().await;
        self.world.with(|sim| {
            if sim.violation.is_none() {
                sim.at_rest();
            }
        });
        // Whatever has happened, each thread takes one more message (I7).
        let threads: Vec<ThreadId> = self.world.with(|sim| {
            sim.plain = true;
            let threads = sim.ledger.threads.iter().filter(|(_, thread)| !thread.silent);
            threads.map(|(id, _)| id.clone()).collect()
        });
        for thread in threads {
            let published =
                self.world.with(|sim| sim.published.keys().filter(|(of, _)| *of == thread).count());
            self.text(&thread, "still there?");
            self.until_rest().await;
            self.world.with(|sim| {
                let now = sim.published.keys().filter(|(of, _)| *of == thread).count();
                if sim.violation.is_none() && now == published {
                    sim.broken(format!("I7: {thread} does not answer any more"));
                }
                if sim.violation.is_none() {
                    sim.at_rest();
                }
            });
        }
        self.story().await
    }

    /// What is stored reads back as it was written (I8), and makes the world's story.
    async fn story(&self) -> Vec<String> {
        let (store, threads) = self
            .world
            .with(|sim| (sim.store.clone(), sim.ledger.threads.keys().cloned().collect::<Vec<_>>()));
        let mut story = Vec::new();
        for thread in threads {
            let Ok(loaded) = store.load(&thread, &[]).await else { continue };
            self.world.with(|sim| {
                let written = sim.ledger.threads.get(&thread).map(|known| known.items.values().cloned());
                let own = loaded.meta.as_ref().map_or(0, |meta| meta.head.0.saturating_sub(1)) as usize;
                let own = &loaded.items[loaded.items.len().saturating_sub(own)..];
                let same = written.is_some_and(|raw| raw.eq(own.iter().map(|i| i.raw.clone())));
                if !same {
                    sim.broken(format!("I8: {thread} does not read back as it was written"));
                }
            });
            story.extend(loaded.items.iter().map(|item| format!("{thread} {} {}", item.seq, item.raw)));
        }
        self.world.with(|sim| {
            let published = sim.published.iter();
            story.extend(published.map(|((thread, id), text)| format!("{thread} published {id} {text}")));
            story.extend(sim.dispatched.keys().map(|call| format!("dispatched {call}")));
        });
        story
    }

    async fn until_rest(&mut self) {
        let bound = self.world.with(|sim| sim.step) + MAX_STEPS;
        loop {
            let (step, broken) = self.world.with(|sim| {
                sim.step += 1;
                if sim.step >= STORMY_STEPS && !sim.calm {
                    sim.calm = true;
                    sim.note(|| "the faults are over".to_owned());
                }
                (sim.step, sim.violation.is_some())
            });
            if broken {
                return self.workers.clear();
            }
            if step > bound {
                return self.world.with(|sim| sim.broken("I7: the world does not come to rest"));
            }
            match self.choose() {
                Act::Poll(at) => self.poll(at),
                Act::Receive => self.receive(Which::Input),
                Act::Drain => self.receive(Which::Dead),
                Act::Text => {
                    self.texts_left -= 1;
                    let threads = self.world.with(|sim| sim.plan.threads);
                    let thread = ThreadId::new(format!("t{}", self.people.below(threads)));
                    self.person(&thread);
                }
                Act::Later => self.later(),
                Act::Tick => self.tick().await,
                Act::Rest => return,
            }
        }
    }

    fn choose(&mut self) -> Act {
        let awake: Vec<usize> =
            (0..self.workers.len()).filter(|at| self.workers[*at].quiet < QUIET_POLLS).collect();
        let (texts_left, workers) = (self.texts_left, self.workers.len());
        let draining = self.workers.iter().any(|worker| worker.of == Which::Dead);
        let people = &mut self.people;
        self.world.with(|sim| {
            let receives = workers < sim.plan.workers && !sim.queue.free_groups(sim.now_s).is_empty();
            let drains = !draining && !sim.dead_letters.free_groups(sim.now_s).is_empty();
            let waits = workers > 0 || !sim.queue.is_empty() || !sim.dead_letters.is_empty();
            if sim.plan.schedule == Schedule::Orderly {
                return match (awake.first(), waits) {
                    (Some(at), _) => Act::Poll(*at),
                    (None, true) if receives => Act::Receive,
                    (None, true) => Act::Tick,
                    (None, false) => match (texts_left, sim.later.len()) {
                        (0, 0) => Act::Rest,
                        (0, _) => Act::Later,
                        (_, 0) => Act::Text,
                        (_, _) if people.chance(300) => Act::Text,
                        (_, _) => Act::Later,
                    },
                };
            }
            if !sim.calm && texts_left == 0 && sim.later.is_empty() && !waits {
                sim.calm = true;
            }
            let ticks = if sim.calm || !waits { 0 } else { sim.plan.time as usize };
            let weights = [
                if awake.is_empty() { 0 } else { 1000 },
                if receives { 150 } else { 0 },
                if texts_left > 0 { 15 } else { 0 },
                if sim.later.is_empty() { 0 } else { 60 },
                ticks,
                if drains { 60 } else { 0 },
            ];
            let mut at = sim.rng.below(weights.iter().sum());
            let which = weights.iter().position(|weight| match at.checked_sub(*weight) {
                Some(left) => {
                    at = left;
                    false
                }
                None => true,
            });
            match which {
                Some(0) => Act::Poll(sim.rng.pick(&awake)),
                Some(1) => Act::Receive,
                Some(2) => Act::Text,
                Some(3) => Act::Later,
                Some(4) => Act::Tick,
                Some(_) => Act::Drain,
                None if waits => Act::Tick,
                None => Act::Rest,
            }
        })
    }

    fn receive(&mut self, of: Which) {
        let worker = self.world.with(|sim| {
            let Plan { batch, visibility_s, .. } = sim.plan;
            let most = match of {
                Which::Input => sim.plan.max_receives,
                Which::Dead => u32::MAX,
            };
            let mut rng = sim.rng.clone();
            let now = sim.now_s;
            let (received, dead) = sim.queue_of(of).receive(now, batch, visibility_s, most, &mut rng);
            sim.rng = rng;
            for message in dead {
                sim.stats.died += 1;
                sim.sent.dies(&message.group, &message.dedup);
                sim.note(|| format!("{} {} has died", message.group, message.id));
                sim.dead.push(message.clone());
                sim.dead_letters.bury(message);
            }
            if received.is_empty() {
                return None;
            }
            let (messages, records): (Vec<Delivered>, Vec<_>) = received.into_iter().unzip();
            sim.stats.redeliveries += messages.iter().filter(|message| message.receives > 1).count() as u64;
            let dies = sim.chance(|plan| plan.crash) && may_fail(sim, &messages);
            let dies_at = dies.then(|| 1 + sim.rng.below(MAX_POLLS) as u32);
            sim.note(|| {
                let ids = messages.iter().map(|m| format!("{}/{}×{} {}", m.group, m.id, m.receives, m.dedup));
                format!("receive {of:?} [{}] dies at {dies_at:?}", ids.collect::<Vec<_>>().join(", "))
            });
            Some((messages, records, dies_at, sim.step))
        });
        let Some((messages, records, dies_at, started)) = worker else { return };
        let (runtime, drain) = (self.stage.runtime.clone(), self.stage.drain.clone());
        let mut event = SqsEvent::default();
        event.records = records;
        let deadline = Instant::now() + self.world.with(|sim| sim.plan.invocation());
        let slice = Box::pin(async move {
            match of {
                Which::Input => process_records(&runtime, event, deadline).await,
                Which::Dead => drain.process_records(event).await,
            }
        });
        self.workers.push(Worker { of, slice, messages, started, polls: 0, dies_at, quiet: 0 });
    }

    fn poll(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        worker.polls += 1;
        if worker.dies_at == Some(worker.polls) && !self.world.with(|sim| sim.calm) {
            let worker = self.workers.swap_remove(at);
            drop(worker.slice);
            return self.world.with(|sim| {
                sim.stats.crashes += 1;
                sim.note(|| format!("CRASH after {} polls", worker.polls - 1));
                for message in &worker.messages {
                    // Mostly Lambda says so at once; else the visibility runs out.
                    if message.receives % 4 != 3 {
                        let now = sim.now_s;
                        sim.queue_of(worker.of).visible_at(&message.handle, now, now);
                    }
                }
            });
        }
        let started = worker.started;
        let before = self.world.with(|sim| {
            sim.worker = started;
            sim.activity
        });
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        match catch_unwind(AssertUnwindSafe(|| worker.slice.as_mut().poll(&mut cx))) {
            Err(_) => self.world.with(|sim| sim.broken("I9: a slice panicked")),
            Ok(Poll::Pending) => {
                let quiet = before == self.world.with(|sim| sim.activity);
                worker.quiet = if quiet { worker.quiet + 1 } else { 0 };
            }
            Ok(Poll::Ready(response)) => {
                let worker = self.workers.swap_remove(at);
                self.finish(&worker, &response);
            }
        }
    }

    fn finish(&self, worker: &Worker, response: &SqsBatchResponse) {
        let failed = |id: &str| response.batch_item_failures.iter().any(|f| f.item_identifier == id);
        self.world.with(|sim| {
            let lost = sim.chance(|plan| plan.lost_ack) && may_fail(sim, &worker.messages);
            let failures: Vec<&str> =
                response.batch_item_failures.iter().map(|f| f.item_identifier.as_str()).collect();
            sim.note(|| {
                format!("done, failed {failures:?}{}", if lost { ", and nobody hears it" } else { "" })
            });
            for message in &worker.messages {
                if failed(&message.id) {
                    continue;
                }
                match worker.of {
                    Which::Input => sim.acknowledged(message, worker.started),
                    Which::Dead => sim.drained(message),
                }
                let now = sim.now_s;
                let queue = sim.queue_of(worker.of);
                match lost {
                    true => queue.visible_at(&message.handle, now, now),
                    false => queue.delete(&message.handle, now),
                }
            }
            if lost {
                sim.stats.faults += 1;
            }
        });
    }

    /// Time passes: by one unit while somebody works, else until a message is visible.
    async fn tick(&mut self) {
        let by = self.world.with(|sim| {
            let mut ticks = 1;
            if self.workers.is_empty()
                && let Some(at) =
                    [&sim.queue, &sim.dead_letters].iter().filter_map(|q| q.next_visible()).min()
            {
                ticks = at.saturating_sub(sim.now_s).div_ceil(TICK.as_secs()).max(1) as u32;
            }
            let by = TICK * ticks;
            sim.now_s += by.as_secs();
            sim.note(|| format!("{by:?} pass"));
            by
        });
        tokio::time::advance(by).await;
        for worker in &mut self.workers {
            worker.quiet = 0;
        }
    }
}
