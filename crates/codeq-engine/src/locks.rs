//! Locks, condition variables and atomics of the inbox and the pipeline. With the feature `shuttle` they belong to a
//! scheduler that runs threads in many orders: see `interleavings.rs`.

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "shuttle")]
pub use scheduled::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic;

/// The interface of `parking_lot` on the locks of shuttle.
#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::{Duration, Instant};

    use shuttle::sync;

    #[derive(Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    /// `None` only while its owner waits on a condition variable.
    pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    #[allow(clippy::expect_used, reason = "whoever waits does not use the guard")]
    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("locked")
        }
    }

    #[allow(clippy::expect_used, reason = "whoever waits does not use the guard")]
    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("locked")
        }
    }

    #[derive(Default)]
    pub struct Condvar(sync::Condvar);

    /// Whether a wait timed out.
    pub struct TimedOut;

    impl TimedOut {
        pub fn timed_out(&self) -> bool {
            true
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Condvar::default()
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
            }
        }

        /// No time passes under the scheduler: the wait times out as soon as other threads have had their turn.
        pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> TimedOut {
            if let Some(held) = guard.0.take() {
                let (held, _) = self
                    .0
                    .wait_timeout(held, Duration::ZERO)
                    .unwrap_or_else(PoisonError::into_inner);
                guard.0 = Some(held);
            }
            shuttle::thread::yield_now();
            TimedOut
        }

        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> TimedOut {
            self.wait_until(guard, Instant::now())
        }
    }
}
