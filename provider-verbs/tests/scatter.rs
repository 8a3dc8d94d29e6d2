//! On a device that would put small messages into completion entries: libmlx5 then copies them to where the receive
//! was posted *when the queue is polled*, even if that memory was freed meanwhile. The provider asks for none of it.

use ibv_core::{IbvConfig, IbvDomain, IbvWc, Provider};
use provider_verbs::VerbsProvider;
use softnic::{Config, Softnic, description::CqeFormat};

#[test]
fn small_messages_are_in_their_place_before_anybody_polls() {
    let mut config = Config::steps(3);
    config.description.devices[0].cqe = CqeFormat::Inline;
    let mut nic = match Softnic::start(config) {
        Ok(nic) => nic,
        Err(e) => return println!("skipped: {e}"),
    };
    let provider = VerbsProvider::default();
    let devices = match provider.devices() {
        Ok(devices) => devices,
        Err(e) => return println!("skipped: {e}"),
    };
    let domain = IbvDomain::new(provider.open(&devices[0]).unwrap(), devices[0].clone());
    let cq = domain.create_cq(256).unwrap();
    let mut qp = domain.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let own = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&own).unwrap();
    let (message, place) = (domain.alloc(8).unwrap(), domain.alloc(8).unwrap());
    let (got, far) = (domain.alloc(8).unwrap(), domain.alloc(8).unwrap());
    message.write_at(0, &[7; 8]).unwrap();
    far.write_at(0, &[9; 8]).unwrap();
    qp.post_recv(&[place.view()]).unwrap();
    let _ids = qp.send(message.view()).unwrap();
    let _ids = qp.get(got.view(), far.remote()).unwrap();
    nic.run();
    assert_eq!((place.to_vec(), got.to_vec()), (vec![7; 8], vec![9; 8]), "before a poll");
    let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 8]);
    let n = poller.poll(&mut wcs).unwrap();
    assert!(n == 3 && wcs[..n].iter().all(|wc| wc.result().is_ok()), "{:?}", &wcs[..n]);
}
