//! Entries in formats that the provider never asks for: it must call the queue dead, and touch nothing.

mod common;

use common::domain;
use ibv_core::{IbvConfig, IbvWc, PollCompletionError};
use softnic::description::CqeFormat;
use softnic::{Config, Softnic};

fn nic(format: CqeFormat) -> Softnic {
    let mut config = Config::steps(7);
    config.description.devices[0].cqe = format;
    Softnic::start(config).unwrap()
}

/// A READ of 8 bytes over a queue pair connected to itself; answers what each of three polls says.
fn read(format: CqeFormat) -> [Result<usize, PollCompletionError>; 3] {
    let mut nic = nic(format);
    let d = domain();
    let cq = d.create_cq(256).unwrap();
    let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let own = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&own).unwrap();
    let (src, dst) = (d.alloc(8).unwrap(), d.alloc(8).unwrap());
    let _ids = qp.get(dst.view(), src.remote()).unwrap();
    nic.run();
    let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 8]);
    [(); 3].map(|()| poller.poll(&mut wcs))
}

#[test]
fn the_provider_does_not_ask_for_data_in_entries_and_gets_none() {
    let answers = read(CqeFormat::Inline);
    assert!(matches!(answers, [Ok(1), Ok(0), Ok(0)]), "{answers:?}");
}

#[test]
fn data_in_an_entry_and_compressed_entries_kill_the_queue() {
    for format in [CqeFormat::InlineAlways, CqeFormat::Compressed] {
        let answers = read(format);
        let dead = |a: &Result<usize, PollCompletionError>| matches!(a, Err(PollCompletionError::Device(_)));
        assert!(answers.iter().all(dead), "{format:?}: {answers:?}");
    }
}
