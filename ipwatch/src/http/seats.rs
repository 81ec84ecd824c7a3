//! Seats for clients, limited per user and in total.
//!
//! Users other than root may have a quarter of the seats each, and may not take the last quarter: otherwise one
//! permitted user could lock out everybody else, including the node's liveness probe, which runs as root.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// User id of a client; `None` if it is unknown, as over TCP.
pub(crate) type User = Option<u32>;

/// A pool of seats, shared by its clones.
#[derive(Debug, Clone)]
pub(crate) struct Seats {
    all: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Number of seats taken by users other than root.
    by_users: usize,
    by: BTreeMap<u32, usize>,
}

/// Why no seat is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSeat {
    /// All seats are taken, or all that users other than root may have.
    Full,
    /// This user has the maximum number of seats for one user.
    OwnFull(u32),
}

/// A seat; free again when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    taken: Arc<Mutex<Taken>>,
    user: User,
}

impl Seats {
    pub(crate) fn new(all: usize) -> Self {
        Self { all, taken: Arc::default() }
    }

    /// Takes a seat for this user.
    pub(crate) fn take(&self, user: User) -> Result<Seat, NoSeat> {
        // No code under this lock panics.
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let quarter = self.all / 4;
        if let Some(uid) = user.filter(|uid| *uid != 0) {
            let own = taken.by.get(&uid).copied().unwrap_or(0);
            if own >= quarter.max(1) {
                return Err(NoSeat::OwnFull(uid));
            }
            if taken.by_users >= self.all - quarter {
                return Err(NoSeat::Full);
            }
        }
        if taken.all >= self.all {
            return Err(NoSeat::Full);
        }
        taken.all += 1;
        if let Some(uid) = user.filter(|uid| *uid != 0) {
            taken.by_users += 1;
            *taken.by.entry(uid).or_default() += 1;
        }
        Ok(Seat { taken: Arc::clone(&self.taken), user })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        let Some(uid) = self.user.filter(|uid| *uid != 0) else { return };
        taken.by_users -= 1;
        if let Some(own) = taken.by.get_mut(&uid) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(seats: &Seats, user: User, most: usize) -> Vec<Seat> {
        (0..most).map_while(|_| seats.take(user).ok()).collect()
    }

    #[test]
    fn one_user_takes_a_quarter_and_all_users_leave_one_to_root() {
        let seats = Seats::new(16);
        let own = taken(&seats, Some(1000), 100);
        assert_eq!(own.len(), 4);
        assert_eq!(seats.take(Some(1000)).unwrap_err(), NoSeat::OwnFull(1000));
        let others: Vec<Seat> = (1001..1100).flat_map(|uid| taken(&seats, Some(uid), 3)).collect();
        assert_eq!(own.len() + others.len(), 12);
        assert_eq!(seats.take(Some(2000)).unwrap_err(), NoSeat::Full);
        let roots = taken(&seats, Some(0), 100);
        assert_eq!(roots.len(), 4);
        assert_eq!(seats.take(Some(0)).unwrap_err(), NoSeat::Full);
        drop(roots);
        assert_eq!(seats.take(Some(2000)).unwrap_err(), NoSeat::Full, "these are root's");
        drop(own);
        assert_eq!(taken(&seats, Some(1000), 100).len(), 4);
    }

    #[test]
    fn a_user_may_have_one_where_there_are_few() {
        let seats = Seats::new(1);
        assert!(seats.take(Some(0)).is_ok() && seats.take(None).is_ok());
        let seats = Seats::new(2);
        let own = seats.take(Some(1000)).unwrap();
        assert_eq!(seats.take(Some(1000)).unwrap_err(), NoSeat::OwnFull(1000));
        drop(own);
        assert!(seats.take(Some(1000)).is_ok());
    }
}
