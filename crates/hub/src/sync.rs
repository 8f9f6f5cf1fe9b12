//! What projections are locked and woken by, in one place: with the feature `shuttle` it is that of a model checker, which tries the orders in
//! which threads can run (`races.rs`).

pub(crate) use std::sync::{Arc, PoisonError, Weak};

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use tokio::sync::watch;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

/// The part of tokio's watch channel that is used here, for the model checker: it promises the same and no more.
#[cfg(feature = "shuttle")]
pub(crate) mod watch {
    use std::convert::Infallible;
    use std::ops::Deref;
    use std::task::{Poll, Waker};

    use super::{Arc, Mutex, MutexGuard, PoisonError};

    struct Value<T> {
        value: T,
        version: u64,
        wakers: Vec<Waker>,
    }

    pub(crate) struct Sender<T>(Arc<Mutex<Value<T>>>);

    pub(crate) struct Receiver<T> {
        shared: Arc<Mutex<Value<T>>>,
        seen: u64,
    }

    pub(crate) struct Ref<'a, T>(MutexGuard<'a, Value<T>>);

    impl<T> Deref for Ref<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0.value
        }
    }

    fn lock<T>(shared: &Mutex<Value<T>>) -> MutexGuard<'_, Value<T>> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl<T> Sender<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Arc::new(Mutex::new(Value { value, version: 0, wakers: Vec::new() })))
        }

        pub(crate) fn borrow(&self) -> Ref<'_, T> {
            Ref(lock(&self.0))
        }

        pub(crate) fn send_replace(&self, value: T) {
            self.send_if_modified(|old| {
                *old = value;
                true
            });
        }

        pub(crate) fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) {
            let wakers = {
                let mut shared = lock(&self.0);
                if !modify(&mut shared.value) {
                    return;
                }
                shared.version += 1;
                std::mem::take(&mut shared.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }

        pub(crate) fn subscribe(&self) -> Receiver<T> {
            let seen = lock(&self.0).version;
            Receiver { shared: self.0.clone(), seen }
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn mark_unchanged(&mut self) {
            self.seen = lock(&self.shared).version;
        }

        pub(crate) async fn changed(&mut self) -> Result<(), Infallible> {
            std::future::poll_fn(|context| {
                let mut shared = lock(&self.shared);
                if shared.version != self.seen {
                    self.seen = shared.version;
                    return Poll::Ready(Ok(()));
                }
                shared.wakers.push(context.waker().clone());
                Poll::Pending
            })
            .await
        }
    }
}
