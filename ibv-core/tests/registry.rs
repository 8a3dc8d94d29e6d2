//! Which provider drives which device is asked of that device, and every answer carries its reason.
mod ring;
use ibv_core::*;
use ring::{RingDomain, depths, drain, looped};

/// Sees these devices; claims those that do not start with `other`; can not even look where told so.
#[derive(Debug)]
struct Listed {
    name: &'static str,
    devices: Vec<&'static str>,
    broken: bool,
}

impl Provider for Listed {
    type Domain = RingDomain;

    fn name(&self) -> &'static str {
        self.name
    }
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        if self.broken {
            return Err(Error::new(ErrorKind::LibraryMissing, "dlopen", "libnone.so.1 not found"));
        }
        Ok(self.devices.iter().map(|d| IbvDeviceInfo::new(*d)).collect())
    }
    fn claim(&self, device: &IbvDeviceInfo) -> Claim {
        if device.name.starts_with("other") {
            return Claim::No(format!("{} is of another vendor", device.name));
        }
        Claim::Yes("listed".into())
    }
    fn open(&self, _: &IbvDeviceInfo) -> Result<RingDomain, Error> {
        Ok(RingDomain::default())
    }
}

/// Claims by the provided method.
#[derive(Debug)]
struct Plain;

impl Provider for Plain {
    type Domain = RingDomain;

    fn name(&self) -> &'static str {
        "plain"
    }
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        Ok(vec![IbvDeviceInfo::new("ring0")])
    }
    fn open(&self, _: &IbvDeviceInfo) -> Result<RingDomain, Error> {
        Ok(RingDomain::default())
    }
}

fn registry() -> Registry {
    let listed = |name, devices, broken| Listed { name, devices, broken };
    Registry::default()
        .with(listed("broken", vec![], true))
        .with(listed("empty", vec![], false))
        .with(listed("picky", vec!["other0", "ring0"], false))
        .with(Plain)
}

#[test]
fn a_survey_tells_what_each_provider_sees_and_claims() {
    let survey = registry().survey();
    assert_eq!(survey.iter().map(|s| s.provider).collect::<Vec<_>>(), ["broken", "empty", "picky", "plain"]);
    assert_eq!(survey[0].devices.as_ref().unwrap_err().kind(), ErrorKind::LibraryMissing);
    assert!(survey[1].devices.as_ref().unwrap().is_empty());
    let [(other, no), (ring, yes)] = &survey[2].devices.as_ref().unwrap()[..] else { panic!("two devices") };
    assert_eq!((other.name.as_str(), ring.name.as_str()), ("other0", "ring0"));
    assert_eq!(no, &Claim::No("other0 is of another vendor".into()));
    assert!(matches!(yes, Claim::Yes(_)));
    assert!(
        matches!(&survey[3].devices.as_ref().unwrap()[..], [(_, Claim::Yes(why))] if why.contains("plain"))
    );
}

#[test]
fn a_named_provider_opens_a_device_that_another_would_open_first() {
    let registry = registry();
    let domain = registry.open_with("plain", "ring0").unwrap();
    assert_eq!(domain.device_info().name, "ring0");
    for (provider, device, words) in [
        ("none", "ring0", "no provider none; this build has: broken, empty, picky, plain"),
        ("picky", "other0", "provider picky does not claim other0 (other0 is of another vendor)"),
        ("plain", "ring9", "provider plain does not claim ring9 (sees no device of that name)"),
        ("broken", "ring0", "provider broken does not claim ring0 (dlopen: libnone.so.1 not found)"),
    ] {
        let e = registry.open_with(provider, device).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoDevice);
        assert!(e.to_string().contains(words), "{e}");
    }
    assert_eq!(registry.providers().count(), 4);
}

#[test]
fn the_first_provider_that_claims_a_device_opens_it() {
    for d in [registry().open("ring0").unwrap(), registry().open_any().unwrap()] {
        assert_eq!(d.device_info().name, "ring0");
        assert!(
            d.imp().downcast_ref::<RingDomain>().is_some() && d.imp().downcast_ref::<AnyDomain>().is_none()
        );
        let cq = d.create_cq(8).unwrap();
        let mut q = looped(&d, &cq, depths(4, 0));
        let mr = d.alloc(8).unwrap();
        let _ids = q.put(mr.remote(), mr.view()).unwrap();
        assert_eq!(drain(&mut cq.poller().unwrap()).len(), 1);
    }
}

#[test]
fn a_device_that_nobody_opens_comes_with_everybodys_reason() {
    let e = registry().open("other0").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoDevice);
    for why in [
        "broken: dlopen: libnone.so.1 not found",
        "empty: sees no device of that name",
        "picky: other0 is of another vendor",
        "plain: sees no device of that name",
    ] {
        assert!(e.to_string().contains(why), "{e} does not say {why}");
    }
    let e = registry().only("empty").unwrap().open_any().unwrap_err();
    assert!(e.to_string().contains("empty: sees no device"), "{e}");
}

#[test]
fn a_provider_can_be_chosen_by_name_and_a_wrong_name_lists_the_right_ones() {
    assert_eq!(registry().only("plain").unwrap().providers().collect::<Vec<_>>(), ["plain"]);
    let e = registry().only("mlx6").unwrap_err();
    assert!(e.to_string().contains("no provider mlx6; this build has: broken, empty, picky, plain"), "{e}");
}

#[test]
fn a_domain_comes_apart_once_nothing_needs_it_and_goes_on_as_an_erased_one() {
    let domain = IbvDomain::new(RingDomain::default(), IbvDeviceInfo::new("ring0"));
    let region = domain.alloc(8).unwrap();
    let domain = domain.into_parts().unwrap_err();
    assert_eq!(region.to_vec(), [0; 8]);
    let cq = domain.create_cq(8).unwrap();
    drop(region);
    let domain = domain.into_parts().unwrap_err();
    drop(cq);
    let (ring, info) = domain.into_parts().unwrap();
    assert_eq!(info.name, "ring0");
    let erased = IbvDomain::new(AnyDomain::new(ring), info);
    assert!(erased.imp().downcast_ref::<RingDomain>().is_some());
    assert_eq!(erased.alloc(4).unwrap().len(), 4);
}

/// Not only another provider's domain, but an erased one too is no `AnyDomain`.
#[test]
fn an_erased_domain_is_its_providers_again_and_nobody_elses() {
    let mut ring = RingDomain::default();
    ring.caps.max_send_wr = 77;
    let erased = AnyDomain::new(ring).downcast::<AnyDomain>().unwrap_err();
    let twice = AnyDomain::new(erased).downcast::<RingDomain>().unwrap_err();
    let ring = twice.downcast::<AnyDomain>().unwrap().downcast::<RingDomain>().unwrap();
    assert_eq!(ring.caps.max_send_wr, 77);
}
