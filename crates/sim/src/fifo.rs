//! Queue that rarely has more than one element: the first one is stored inline.

use std::collections::VecDeque;

#[derive(Clone, Debug)]
#[expect(
    clippy::box_collection,
    reason = "a pointer for what is hardly ever there, where millions of connections have one"
)]
pub(crate) struct Fifo<T> {
    /// First element; `None` only if the queue is empty.
    first: Option<T>,
    /// Further elements, boxed to keep the queue small.
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { first: None, rest: None }
    }
}

impl<T> Fifo<T> {
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.rest.get_or_insert_default().push_back(item);
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.first.take()?;
        if let Some(rest) = &mut self.rest {
            self.first = rest.pop_front();
        }
        Some(first)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.as_ref()?.get(index),
        }
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&T> {
        self.first.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.as_mut()?.get_mut(index),
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order() {
        let mut fifo = Fifo::default();
        for round in 0..3 {
            (0..4).for_each(|n| fifo.push(10 * round + n));
            assert_eq!(fifo.len(), 4);
            assert_eq!((0..5).map(|n| fifo.get(n).copied()).collect::<Vec<_>>()[4], None);
            assert_eq!(fifo.get(2), Some(&(10 * round + 2)));
            assert_eq!((0..4).filter_map(|_| fifo.pop()).collect::<Vec<_>>(), [0, 1, 2, 3].map(|n| 10 * round + n));
            assert_eq!((fifo.pop(), fifo.first(), fifo.len()), (None, None, 0));
        }
    }
}
