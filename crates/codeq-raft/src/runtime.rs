//! Tasks, timers, time and randomness for openraft and for this crate.
//!
//! On a thread that has entered a simulation ([`enter`]), the simulation's [`Executor`] provides them; on any other
//! thread, tokio does. So nothing else in this crate has to be generic over its runtime.
//!
//! A simulated run must depend on its seed alone. tokio's `select!` without `biased` draws its own random numbers, and
//! only a build with `--cfg tokio_unstable` can seed them. openraft has two of those: after `RPCError::Unreachable`, which
//! our network therefore never returns, and in `Raft::wait`, which we therefore never call. Our own selects are biased.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use codeq_core::id::split_mix64;
use openraft::async_runtime::AsyncOneshotSendExt;
use openraft::{AsyncRuntime, Instant as _};
use tokio::runtime::RuntimeFlavor;
use tokio::sync::oneshot;

/// A task for an executor.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A timer.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// What runs tasks instead of tokio. The node whose task is being polled is the current one.
pub trait Executor: Send + Sync + 'static {
    /// Starts a task of the current node.
    fn spawn(&self, task: Task);
    /// The monotonic clock of the current node.
    fn now(&self) -> Duration;
    /// Waits until that clock has reached `deadline`.
    fn sleep_until(&self, deadline: Duration) -> Sleep;
    /// A random number.
    fn random(&self) -> u64;
}

thread_local! {
    static ENTERED: RefCell<Option<Arc<dyn Executor>>> = const { RefCell::new(None) };
}

/// Uses an executor on this thread until the guard is dropped.
#[must_use = "the executor is used until the guard is dropped"]
pub fn enter(executor: Arc<dyn Executor>) -> Entered {
    let before = ENTERED.with(|entered| entered.replace(Some(executor)));
    Entered { before, this_thread: PhantomData }
}

/// An executor is in use on this thread.
pub struct Entered {
    before: Option<Arc<dyn Executor>>,
    /// Guards do not leave their thread.
    this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        ENTERED.with(|entered| entered.replace(before));
    }
}

/// The executor of this thread.
fn entered() -> Option<Arc<dyn Executor>> {
    // There is none while the thread's locals are being destroyed.
    ENTERED.try_with(|entered| entered.borrow().clone()).ok().flatten()
}

/// Starts a task. Its handle need not be kept.
pub fn spawn<T>(future: T) -> JoinHandle<T::Output>
where
    T: Future + Send + 'static,
    T::Output: Send + 'static,
{
    let (done, result) = oneshot::channel();
    let task = async move {
        // Most handles are dropped: nobody waits.
        let _ = done.send(future.await);
    };
    match entered() {
        Some(executor) => executor.spawn(Box::pin(task)),
        None => drop(tokio::spawn(task)),
    }
    JoinHandle(result)
}

/// Runs something that takes long, such as writing a file, on another thread. A simulation runs it
/// at once.
pub async fn unblock<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    match entered() {
        Some(_) => Ok(work()),
        None => tokio::task::spawn_blocking(work).await.map_err(|_| JoinError),
    }
}

/// Runs something that blocks, such as a sync, on this thread. If the runtime has several threads,
/// another one takes over the tasks that wait for this one.
pub fn block<T>(work: impl FnOnce() -> T) -> T {
    let has_several_threads = || {
        let runtime = tokio::runtime::Handle::try_current();
        runtime.is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    match entered().is_none() && has_several_threads() {
        true => tokio::task::block_in_place(work),
        false => work(),
    }
}

/// The current time.
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for some time.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Waits until a moment.
pub fn sleep_until(deadline: Instant) -> Sleep {
    match entered() {
        Some(executor) => executor.sleep_until(deadline.0),
        None => match origin().checked_add(deadline.0) {
            Some(deadline) => Box::pin(tokio::time::sleep_until(deadline.into())),
            None => Box::pin(std::future::pending()),
        },
    }
}

/// Waits for a future, but not for longer than this.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    timeout_at(now() + duration, future)
}

/// Waits for a future, but not beyond a moment.
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    Timeout { future: Box::pin(future), sleep: sleep_until(deadline) }
}

/// A random number.
pub fn random() -> u64 {
    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }
    match entered() {
        Some(executor) => executor.random(),
        None => STATE.with(|state| {
            // The standard library seeds its hashers from the system, which is enough to spread election timeouts.
            let seed = state.get().unwrap_or_else(|| RandomState::new().hash_one(0));
            let next = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            state.set(Some(next));
            split_mix64(next)
        }),
    }
}

/// The moment from which [`Instant`] counts on tokio. It lies in the past because paused clocks of tests may lag.
fn origin() -> std::time::Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let now = std::time::Instant::now();
        now.checked_sub(Duration::from_secs(86_400)).unwrap_or(now)
    })
}

/// A reading of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The time since an earlier reading, or nothing if that one is later.
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl openraft::Instant for Instant {
    fn now() -> Instant {
        match entered() {
            Some(executor) => Instant(executor.now()),
            None => {
                let now = tokio::time::Instant::now().into_std();
                Instant(now.saturating_duration_since(origin()))
            }
        }
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(duration))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

/// Waits for the result of a task. Dropping it does not end the task.
#[derive(Debug)]
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| JoinError)
    }
}

/// A task ended without a result: it panicked, or its runtime is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task ended without a result")]
pub struct JoinError;

/// Waits for a future for a limited time.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        self.sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    }
}

/// The time limit has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time limit has passed")]
pub struct Elapsed;

/// The sender of a oneshot channel, in the form that openraft asks for.
pub struct OneshotSender<T>(oneshot::Sender<T>);

impl<T: Send> AsyncOneshotSendExt<T> for OneshotSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

impl<T> fmt::Debug for OneshotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneshotSender")
    }
}

/// Random numbers for openraft's election timeouts.
#[derive(Debug)]
pub struct Random;

impl rand_core::RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        (random() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        random()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            for (to, from) in chunk.iter_mut().zip(random().to_le_bytes()) {
                *to = from;
            }
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

/// The runtime in the form that openraft asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Runtime;

impl AsyncRuntime for Runtime {
    type JoinError = JoinError;
    type JoinHandle<T: Send + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + Send> = Timeout<T>;
    type ThreadLocalRng = Random;
    type OneshotSender<T: Send> = OneshotSender<T>;
    type OneshotReceiverError = oneshot::error::RecvError;
    type OneshotReceiver<T: Send> = oneshot::Receiver<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        sleep(duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> Timeout<F> {
        timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(deadline: Instant, future: F) -> Timeout<F> {
        timeout_at(deadline, future)
    }

    fn is_panic(_: &JoinError) -> bool {
        // A panic and a cancellation look the same here, and openraft uses the difference only in a message.
        true
    }

    fn thread_rng() -> Random {
        Random
    }

    fn oneshot<T: Send>() -> (OneshotSender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (OneshotSender(sender), receiver)
    }
}
