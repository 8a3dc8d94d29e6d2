//! Descriptions that can be read, and the errors of those that can not.

use super::*;

#[test]
fn a_table_with_pairs_link_local_and_holes_is_read() {
    let text = r#"
        [[device]]
        name = "rocep1s0"
        [[device.port]]
        link = "roce"
        mtu = 1024
        gids = [
            { gid = "fe80::1", type = "v1", netdev = "eth0" },
            { gid = "fe80::1", type = "v2", netdev = "eth0" },
            {},
            { gid = "192.0.2.7" },
            { gid = "2001:db8::9", type = "v2" },
        ]
    "#;
    let d = Description::parse(text).unwrap();
    let port = &d.devices[0].ports[0];
    assert_eq!(port.mtu_code(), 3);
    let types: Vec<_> = (0..6).map(|i| port.gid_type(i)).collect();
    let v2 = Some(GidType::V2);
    assert_eq!(types, [Some(GidType::V1), v2, None, v2, v2, None]);
    assert_eq!(port.gids[3].gid[10..], [0xff, 0xff, 192, 0, 2, 7]);
    assert!(!port.has_gid(&[0; 16]), "a hole is not an address");
}

#[test]
fn bad_values_are_named() {
    for (text, want) in [
        ("[[device]]\nname='a/b'\n[[device.port]]\nlink='ib'\nlid=1", "a/b"),
        ("[[device]]\nname='a'\n[[device.port]]\nlink='ib'\nlid=1\nmtu=1500", "1500"),
        ("[[device]]\nname='a'\n[[device.port]]\nlink='ib'", "lid"),
        ("[[device]]\nname='a'\n[[device.port]]\nlink='ib'\nlid=1\nmax_message=0", "max_message"),
        ("[[device]]\nname='a'\n[[device.port]]\nlink='ib'\nlid=1\ngids=[{gid='nonsense'}]", "nonsense"),
        ("[[device]]\nname='a'\n[[device.port]]\nlink='ib'\nlid=1\ngids=[{gid='::1',type='v2'}]", "\"ib\""),
    ] {
        let error = Description::parse(text).unwrap_err().to_string();
        assert!(error.contains(want), "{error} should name {want}");
    }
}

#[test]
fn an_efa_device_needs_a_name_alone_and_says_what_is_off() {
    let text =
        "[[device]]\nname='rdmap0s6'\nkind='efa'\nefa={write=false,max_rdma_size=1000}\n[[device.port]]";
    let d = Description::parse(text).unwrap();
    let device = &d.devices[0];
    assert_eq!((device.kind, device.efa.write, device.efa.read), (Kind::Efa, false, true));
    assert_eq!((device.efa.max_rdma_size, device.ports[0].max_message), (1000, 8928));
    assert_eq!(device.ports[0].gids.len(), 1);
    for (more, want) in [
        ("efa={max_sq_sge=9}\n[[device.port]]", "max_sq_sge 9"),
        ("efa={speed=1}\n[[device.port]]", "speed"),
        ("[[device.port]]\nlink='ib'", "link layer"),
        ("[[device.port]]\n[[device.port]]", "2 ports"),
    ] {
        let text = format!("[[device]]\nname='a'\nkind='efa'\n{more}");
        let error = Description::parse(&text).unwrap_err().to_string();
        assert!(error.contains(want), "{error} should name {want}");
    }
}

#[test]
fn every_mtu_has_its_code() {
    for (mtu, code) in [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
        let port =
            PortDescription { link: Link::Ib, lid: 1, mtu, max_message: 1, active: true, gids: vec![] };
        assert_eq!(port.mtu_code(), code);
    }
}
