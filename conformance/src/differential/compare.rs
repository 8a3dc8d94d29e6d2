//! Compares what was seen on a provider with what the model shows, as strictly as the provider's
//! capabilities promise. Pure.

use super::{
    execute::{Epoch, Observed},
    plan::Plan,
};
use ibv_core::{Caps, WcStatus};

/// The first difference, in words.
pub(super) fn difference(plan: &Plan, caps: &Caps, model: &Observed, provider: &Observed) -> Option<String> {
    if let Some((i, (m, p))) = model.posts.iter().zip(&provider.posts).enumerate().find(|(_, (m, p))| m != p)
    {
        return Some(format!("post {i} of the program: {p:?}; the model: {m:?}"));
    }
    let epochs = model.epochs.iter().zip(&provider.epochs).enumerate();
    epochs
        .filter_map(|(i, (m, p))| in_epoch(plan, caps, m, p).map(|why| format!("up to drain {i}: {why}")))
        .next()
}

fn in_epoch(plan: &Plan, caps: &Caps, model: &Epoch, provider: &Epoch) -> Option<String> {
    let failed = model.completions.iter().any(|(_, status)| *status != WcStatus::SUCCESS);
    // Without an order, which requests a failure overtakes is open.
    let open = failed && !(caps.completions_in_order && caps.messages_in_order);
    let completions = if open { loosely(model, provider) } else { exactly(caps, model, provider) };
    completions.or_else(|| if open { None } else { effects(plan, caps, model, provider) })
}

/// The same completions; in the same order, where that is promised.
fn exactly(caps: &Caps, model: &Epoch, provider: &Epoch) -> Option<String> {
    let (mut m, mut p) = (model.completions.clone(), provider.completions.clone());
    if !caps.completions_in_order {
        m.sort_unstable();
        p.sort_unstable();
    }
    if m != p {
        return Some(format!("completions {p:?}; the model: {m:?}"));
    }
    (model.cause != provider.cause)
        .then(|| format!("root cause {:?}; the model: {:?}", provider.cause, model.cause))
}

/// Each request once; whatever is neither done nor flushed failed by itself in the model, or would have.
fn loosely(model: &Epoch, provider: &Epoch) -> Option<String> {
    let ids = |e: &Epoch| {
        let mut ids: Vec<_> = e.completions.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    };
    if ids(model) != ids(provider) {
        return Some(format!("completions {:?}; the model: {:?}", provider.completions, model.completions));
    }
    let succeeded = |e: &Epoch, id: u64| e.completions.contains(&(id, WcStatus::SUCCESS));
    let causes =
        model.completions.iter().filter(|(_, s)| *s != WcStatus::SUCCESS && *s != WcStatus::WR_FLUSH_ERR);
    causes
        .filter(|(id, _)| succeeded(provider, *id))
        .map(|(id, status)| format!("request {id} succeeded; the model: {status:?}"))
        .next()
        .or_else(|| provider.cause.is_none().then(|| "a request failed, and no root cause was kept".into()))
}

/// The same bytes on both sides, and the same messages; in the same order, where that is promised.
fn effects(plan: &Plan, caps: &Caps, model: &Epoch, provider: &Epoch) -> Option<String> {
    for (whose, m, p) in [("a", &model.near, &provider.near), ("b", &model.far, &provider.far)] {
        if let Some(i) = m.iter().zip(p).position(|(m, p)| m != p) {
            let (slot, at) = (i / plan.slot, i % plan.slot);
            return Some(format!(
                "end {whose}'s slot {slot}, byte {at}: {:#04x}; the model: {:#04x}",
                p[i], m[i]
            ));
        }
    }
    let (mut m, mut p) = (model.received.clone(), provider.received.clone());
    if !caps.messages_in_order {
        m.sort();
        p.sort();
    }
    (m != p).then(|| format!("end b received {p:?}; the model: {m:?}"))
}
