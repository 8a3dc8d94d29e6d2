//! The recorder, as the handles show it.

use super::{Closing, Connected};
use crate::{
    queue_pair::IbvQueuePair,
    recorder::{Counters, FlightRecord, RootCause},
};

macro_rules! shows_its_record {
    ($($handle:ident)*) => { $(
        impl<Q: IbvQueuePair> $handle<Q> {
            /// What the queue pair has done so far.
            pub fn counters(&self) -> Counters {
                self.qp().core().counters()
            }

            /// Its last operations, as many as `IbvConfig::flight_recorder` says, and what became of
            /// each. Prints as a table.
            pub fn flight_record(&self) -> FlightRecord {
                self.qp().core().flight_record()
            }

            /// Its first failure that was not a mere flush, with the record; `None` where nothing failed.
            pub fn root_cause(&self) -> Option<RootCause> {
                self.qp().core().root_cause()
            }
        }
    )* };
}

shows_its_record!(Connected Closing);
