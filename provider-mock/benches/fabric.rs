//! Puts on the mock against `memcpy` of the same bytes in the same run, and static against erased
//! dispatch. The mock says nothing about a network's speed; this says that tests over it are not slow.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use ibv_core::*;
use provider_mock::*;
use std::hint::black_box;

struct End<D: IbvDomainImpl> {
    qp: Connected<D::QueuePair>,
    poller: Poller<D>,
    d: IbvDomain<D>,
}

fn looped<D: IbvDomainImpl>(wrap: impl FnOnce(MockDomain) -> D) -> End<D> {
    let info = IbvDeviceInfo::new("mock0");
    let fabric = Fabric::new(FabricConfig { trace: 0, ..FabricConfig::default() });
    let d = IbvDomain::new(wrap(MockProvider::new(fabric).open(&info).unwrap()), info);
    let cq = d.create_cq(256).unwrap();
    let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    End { qp: qp.connect(&me).unwrap(), poller: cq.poller().unwrap(), d }
}

impl<D: IbvDomainImpl> End<D> {
    /// Polls until `n` requests have completed.
    fn finish(&mut self, mut n: usize) {
        let mut wcs = [IbvWc::default(); 64];
        while n > 0 {
            n -= self.poller.poll(&mut wcs).unwrap();
        }
    }
}

fn bytes(c: &mut Criterion) {
    let mut group = c.benchmark_group("bytes");
    group.sample_size(20);
    for mib in [1usize, 4, 16, 64] {
        let len = mib << 20;
        group.throughput(Throughput::Bytes(len as u64));
        let (src, mut dst) = (vec![1u8; len], vec![2u8; len]);
        group.bench_function(BenchmarkId::new("memcpy", mib), |b| {
            b.iter(|| black_box(&mut dst).copy_from_slice(black_box(&src)));
        });
        let mut end = looped(|d| d);
        let (l, r) = (end.d.alloc(len).unwrap(), end.d.alloc(len).unwrap());
        l.write_at(0, &src).unwrap();
        r.write_at(0, &src).unwrap();
        group.bench_function(BenchmarkId::new("put", mib), |b| {
            b.iter(|| {
                let ids = end.qp.put(r.remote(), l.view()).unwrap();
                end.finish(ids.count as usize);
            });
        });
    }
    group.finish();
}

fn requests<D: IbvDomainImpl>(c: &mut Criterion, dispatch: &str, wrap: fn(MockDomain) -> D) {
    let mut end = looped(wrap);
    let mr = end.d.alloc(64).unwrap();
    let mut group = c.benchmark_group("requests");
    for n in [1usize, 8, 64] {
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(BenchmarkId::new(format!("post and poll, {dispatch}"), n), |b| {
            b.iter(|| {
                let mut batch = end.qp.batch();
                for _ in 0..n {
                    let _ids = batch.put(mr.remote(), mr.view()).unwrap();
                }
                batch.ring().unwrap();
                end.finish(n);
            });
        });
    }
    group.finish();
}

fn polls<D: IbvDomainImpl>(c: &mut Criterion, dispatch: &str, wrap: fn(MockDomain) -> D) {
    let mut end = looped(wrap);
    let mr = end.d.alloc(64).unwrap();
    let mut group = c.benchmark_group("poll");
    for n in [1usize, 16, 64] {
        group.throughput(Throughput::Elements(64));
        group.bench_function(BenchmarkId::new(format!("64 completions, {dispatch}"), n), |b| {
            let mut wcs = vec![IbvWc::default(); n];
            let end = std::cell::RefCell::new(&mut end);
            b.iter_batched(
                || {
                    let mut end = end.borrow_mut();
                    for _ in 0..64 {
                        let _ids = end.qp.put(mr.remote(), mr.view()).unwrap();
                    }
                    // Lets everything happen outside the measurement.
                    assert_eq!(end.poller.poll(&mut []), Ok(0));
                },
                |()| {
                    let mut end = end.borrow_mut();
                    let mut left = 64;
                    while left > 0 {
                        left -= end.poller.poll(&mut wcs).unwrap();
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn dispatch(c: &mut Criterion) {
    requests(c, "static", |d| d);
    requests(c, "erased", AnyDomain::new);
    polls(c, "static", |d| d);
    polls(c, "erased", AnyDomain::new);
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    bytes(&mut c);
    dispatch(&mut c);
    c.final_summary();
}
