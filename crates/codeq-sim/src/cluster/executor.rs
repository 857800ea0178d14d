//! Runs the tasks of all nodes in one thread, in virtual time.
//!
//! The seed decides in which order ready tasks run, how long each step takes and what random numbers tasks get. Each step
//! takes a little time; beyond that, time passes only while nothing is ready. Every node has a monotonic clock of its own,
//! which runs a little too fast or too slow. A crash drops the tasks and timers of a node; what they had sent remains on
//! its way.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use codeq_core::id::split_mix64;
use codeq_raft::runtime::{self, Entered, Sleep, Task};
use codeq_raft::types::NodeId;
use parking_lot::Mutex;

use crate::rng::Rng;

/// Who a task belongs to: a node, or the world around the nodes, whose clock is right.
pub type Owner = Option<NodeId>;

/// A step takes up to this many nanoseconds, so that time passes even for a task that never waits.
const STEP_NANOS_MAX: u64 = 20_000;

/// A task panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// Whose task it was.
    pub owner: Owner,
    /// The panic's message.
    pub text: String,
}

/// The executor. Clones are the same executor.
#[derive(Clone)]
pub struct Executor(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    woken: Arc<Mutex<Vec<u64>>>,
}

struct State {
    rng: Rng,
    /// Random numbers for tasks: further draws here do not change the order of tasks.
    random: Rng,
    now: Duration,
    current: Owner,
    nodes: BTreeMap<NodeId, NodeClock>,
    tasks: BTreeMap<u64, Slot>,
    ready: Vec<u64>,
    timers: BTreeMap<(Duration, u64), Waker>,
    next: u64,
    trace: u64,
    steps: u64,
    panics: Vec<Panicked>,
}

struct Slot {
    owner: Owner,
    /// `None` while it runs.
    task: Option<Task>,
    waker: Waker,
}

struct NodeClock {
    /// By how many parts in a billion it runs too fast.
    drift: i64,
    booted: Duration,
    up: bool,
    stalled_until: Duration,
    /// How long the last step took besides computing, such as for a disk.
    cost: Option<Cost>,
}

/// Says how long a step took besides computing.
pub type Cost = Arc<dyn Fn() -> Duration + Send + Sync>;

struct WakeTask {
    id: u64,
    woken: Arc<Mutex<Vec<u64>>>,
}

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        self.woken.lock().push(self.id);
    }
}

impl Executor {
    /// An executor without tasks.
    pub fn new(seed: u64) -> Executor {
        let rng = Rng::new(seed);
        Executor(Arc::new(Inner {
            state: Mutex::new(State {
                random: rng.fork("random"),
                rng: rng.fork("executor"),
                now: Duration::ZERO,
                current: None,
                nodes: BTreeMap::new(),
                tasks: BTreeMap::new(),
                ready: Vec::new(),
                timers: BTreeMap::new(),
                next: 0,
                trace: seed,
                steps: 0,
                panics: Vec::new(),
            }),
            woken: Arc::default(),
        }))
    }

    /// Makes openraft and our own tasks on this thread use this executor.
    pub fn enter(&self) -> Entered {
        runtime::enter(Arc::new(self.clone()))
    }

    /// Boots a machine. Its clock starts at zero and runs too fast by `drift` parts in a billion.
    pub fn boot(&self, node: NodeId, drift: i64) {
        let mut state = self.0.state.lock();
        let booted = state.now;
        let cost = state.nodes.remove(&node).and_then(|clock| clock.cost);
        let stalled_until = Duration::ZERO;
        state.nodes.insert(node, NodeClock { drift, booted, up: true, stalled_until, cost });
    }

    /// Asks after every step of a node's tasks how long it took besides computing, and stalls the node for that long.
    pub fn set_cost(&self, node: NodeId, cost: Cost) {
        if let Some(clock) = self.0.state.lock().nodes.get_mut(&node) {
            clock.cost = Some(cost);
        }
    }

    /// Lets a crashed node run tasks again. Its machine, and with it its clock, kept running.
    pub fn restart(&self, node: NodeId) {
        if let Some(clock) = self.0.state.lock().nodes.get_mut(&node) {
            clock.up = true;
            clock.stalled_until = Duration::ZERO;
        }
    }

    /// Drops all tasks of a node, and with them their timers.
    pub fn crash(&self, node: NodeId) {
        if let Some(clock) = self.0.state.lock().nodes.get_mut(&node) {
            clock.up = false;
        }
        // Destructors run without the lock: they use the executor too.
        let dead: Vec<Slot> = {
            let mut state = self.0.state.lock();
            let of_node = |slot: &mut Slot| slot.owner == Some(node);
            state.tasks.extract_if(.., |_, slot| of_node(slot)).map(|(_, slot)| slot).collect()
        };
        self.with_owner(Some(node), || drop(dead));
    }

    /// Stops a node for a while, as if its process were suspended or its disk slow.
    pub fn stall(&self, node: NodeId, duration: Duration) {
        let mut state = self.0.state.lock();
        let until = state.now.saturating_add(duration);
        if let Some(clock) = state.nodes.get_mut(&node) {
            clock.stalled_until = clock.stalled_until.max(until);
        }
    }

    /// Ends the stall of a node at once.
    pub fn resume(&self, node: NodeId) {
        let mut state = self.0.state.lock();
        let now = state.now;
        let Some(clock) = state.nodes.get_mut(&node).filter(|clock| clock.stalled_until > now)
        else {
            return;
        };
        clock.stalled_until = Duration::ZERO;
        // Its tasks wait for the end of the stall. Waking one that waits for something else is harmless.
        let of_node = |(id, slot): (&u64, &Slot)| (slot.owner == Some(node)).then_some(*id);
        let woken: Vec<u64> = state.tasks.iter().filter_map(of_node).collect();
        state.ready.extend(woken);
    }

    /// Starts a task of a node, or of the world.
    pub fn spawn_on(&self, owner: Owner, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(owner, Box::pin(task));
    }

    fn spawn_boxed(&self, owner: Owner, task: Task) {
        let mut state = self.0.state.lock();
        let is_up = owner.is_none_or(|node| state.nodes.get(&node).is_some_and(|clock| clock.up));
        if !is_up {
            drop(state);
            drop(task);
            return;
        }
        let id = state.draw_number();
        let waker = Waker::from(Arc::new(WakeTask { id, woken: Arc::clone(&self.0.woken) }));
        state.tasks.insert(id, Slot { owner, task: Some(task), waker });
        state.ready.push(id);
    }

    /// Calls a function as if a task of `owner` did.
    pub fn with_owner<T>(&self, owner: Owner, call: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.0.state.lock().current, owner);
        let result = call();
        self.0.state.lock().current = before;
        result
    }

    /// The true time since the start of the run.
    pub fn time(&self) -> Duration {
        self.0.state.lock().now
    }

    /// The monotonic clock of a node, or the true time.
    pub fn clock(&self, owner: Owner) -> Duration {
        self.0.state.lock().clock(owner)
    }

    /// A hash of everything that ran so far, in order.
    pub fn trace(&self) -> u64 {
        self.0.state.lock().trace
    }

    /// Steps of tasks so far.
    pub fn steps(&self) -> u64 {
        self.0.state.lock().steps
    }

    /// The tasks that panicked since the last call.
    pub fn take_panics(&self) -> Vec<Panicked> {
        std::mem::take(&mut self.0.state.lock().panics)
    }

    /// Lets time pass in which nothing happens, as if all machines had been suspended.
    pub fn leap(&self, duration: Duration) {
        let mut state = self.0.state.lock();
        state.now = state.now.saturating_add(duration);
    }

    /// Runs for some time.
    pub fn run_for(&self, duration: Duration) {
        let end = self.time().saturating_add(duration);
        self.run_until(end, || false);
    }

    /// Runs until a condition holds, which is checked after every step, or until `end`. Returns whether it holds.
    pub fn run_until(&self, end: Duration, mut done: impl FnMut() -> bool) -> bool {
        loop {
            if done() {
                return true;
            }
            if self.time() >= end {
                return false;
            }
            self.fire();
            if !self.step() {
                self.advance(end);
            }
        }
    }

    /// Runs a ready task. Returns false if there is none.
    fn step(&self) -> bool {
        let (id, owner, mut task, waker) = {
            let mut state = self.0.state.lock();
            let woken = std::mem::take(&mut *self.0.woken.lock());
            state.ready.extend(woken);
            loop {
                if state.ready.is_empty() {
                    return false;
                }
                let count = state.ready.len() as u64;
                let at = state.rng.below(count) as usize;
                let id = state.ready.swap_remove(at);
                if state.defer_if_stalled(id) {
                    continue;
                }
                // It may be gone, or may have been woken twice and run since. Both are harmless.
                let Some(slot) = state.tasks.get_mut(&id) else { continue };
                let Some(task) = slot.task.take() else { continue };
                let (owner, waker) = (slot.owner, slot.waker.clone());
                state.current = owner;
                let cost = state.rng.below(STEP_NANOS_MAX);
                state.now = state.now.saturating_add(Duration::from_nanos(cost));
                state.steps += 1;
                let now = state.now.as_nanos() as u64;
                state.trace = split_mix64(state.trace ^ id.rotate_left(40) ^ now);
                break (id, owner, task, waker);
            }
        };
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut context)));
        self.charge(owner);
        let mut state = self.0.state.lock();
        match polled {
            Ok(Poll::Pending) => {
                if let Some(slot) = state.tasks.get_mut(&id) {
                    slot.task = Some(task);
                    state.current = None;
                    return true;
                }
            }
            Ok(Poll::Ready(())) => {}
            Err(panic) => state.panics.push(Panicked { owner, text: text_of(&*panic) }),
        }
        let slot = state.tasks.remove(&id);
        drop(state);
        drop((task, slot));
        self.0.state.lock().current = None;
        true
    }

    /// Stalls a node for as long as its last step took.
    fn charge(&self, owner: Owner) {
        let Some(node) = owner else { return };
        let cost = self.0.state.lock().nodes.get(&node).and_then(|clock| clock.cost.clone());
        if let Some(took) = cost.map(|cost| cost()).filter(|took| !took.is_zero()) {
            self.stall(node, took);
        }
    }

    /// Moves the time to the next timer, but not beyond `end`.
    fn advance(&self, end: Duration) {
        let mut state = self.0.state.lock();
        let next = state.timers.first_key_value().map_or(end, |((at, _), _)| *at);
        state.now = state.now.max(next.min(end));
    }

    /// Wakes the tasks whose timers are due.
    fn fire(&self) {
        let mut due = Vec::new();
        let mut state = self.0.state.lock();
        let now = state.now;
        while let Some(timer) = state.timers.first_entry()
            && timer.key().0 <= now
        {
            due.push(timer.remove());
        }
        drop(state);
        due.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn draw_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn clock(&self, owner: Owner) -> Duration {
        match owner.and_then(|node| self.nodes.get(&node)) {
            Some(clock) => clock.at(self.now),
            None => self.now,
        }
    }

    fn defer_if_stalled(&mut self, id: u64) -> bool {
        let Some(slot) = self.tasks.get(&id) else { return false };
        let clock = slot.owner.and_then(|node| self.nodes.get(&node));
        let Some(until) = clock.map(|clock| clock.stalled_until).filter(|until| *until > self.now)
        else {
            return false;
        };
        let waker = slot.waker.clone();
        let number = self.draw_number();
        self.timers.insert((until, number), waker);
        true
    }
}

impl NodeClock {
    /// What it shows at a true time.
    fn at(&self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.booted).as_nanos() as i128;
        let shown = passed + passed * i128::from(self.drift) / BILLION;
        Duration::from_nanos(u64::try_from(shown).unwrap_or(0))
    }

    /// The first true time at which it shows at least this.
    fn when(&self, shown: Duration) -> Duration {
        let shown = shown.as_nanos().min(u128::from(u64::MAX / 4)) as i128;
        let passed = shown * BILLION / (BILLION + i128::from(self.drift)) + 1;
        self.booted.saturating_add(Duration::from_nanos(u64::try_from(passed).unwrap_or(0)))
    }
}

const BILLION: i128 = 1_000_000_000;

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl runtime::Executor for Executor {
    fn spawn(&self, task: Task) {
        let owner = self.0.state.lock().current;
        self.spawn_boxed(owner, task);
    }

    fn now(&self) -> Duration {
        let state = self.0.state.lock();
        state.clock(state.current)
    }

    fn sleep_until(&self, deadline: Duration) -> Sleep {
        let state = self.0.state.lock();
        let at = match state.current.and_then(|node| state.nodes.get(&node)) {
            Some(clock) => clock.when(deadline),
            None => deadline,
        };
        Box::pin(Timer { executor: self.clone(), at, number: None })
    }

    fn random(&self) -> u64 {
        self.0.state.lock().random.draw()
    }
}

struct Timer {
    executor: Executor,
    at: Duration,
    /// Its number among the timers, once it waits.
    number: Option<u64>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let executor = self.executor.clone();
        let mut state = executor.0.state.lock();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| state.draw_number());
        state.timers.insert((self.at, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.executor.0.state.lock().timers.remove(&(self.at, number));
            drop(waker);
        }
    }
}
