//! The machine against a model of a store, under random delays, losses and clock rates.

use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn grant(sent: u64) -> Grant {
    Grant::new(Sent::at(at(sent)), Some(TTL), None)
}

fn renewed(sent: u64) -> Event {
    Event::Answered(Some(Renewal::Renewed { counted_from: Sent::at(at(sent)), ttl: TTL }))
}

fn tick() -> Event {
    Event::Tick { ahead: Duration::ZERO }
}

fn held(sent: u64, now: u64) -> LeaseMachine {
    LeaseMachine::begin(at(now), &grant(sent), Upkeep::default(), 0.0).unwrap()
}

#[test]
fn t1_a_deadline_counts_from_the_sending_less_the_drift_allowance() {
    let allowance = 102; // a hundredth of ten seconds, and two milliseconds
    let mut lease = held(1_000, 5_000);
    assert_eq!(lease.deadline(), Some(at(11_000 - allowance)));
    assert_eq!(lease.on(at(6_000), tick(), 0.0), Action::Renew);
    lease.on(at(9_000), renewed(6_000), 0.0);
    assert_eq!(lease.deadline(), Some(at(16_000 - allowance)));
}

#[test]
fn t1_a_late_reply_is_not_a_grant() {
    let late = LeaseMachine::begin(at(10_899), &grant(1_000), Upkeep::default(), 0.0).unwrap_err();
    assert_eq!(late.took, Duration::from_millis(9_899));
    assert!(LeaseMachine::begin(at(10_897), &grant(1_000), Upkeep::default(), 0.0).is_ok());
}

#[test]
fn t1_the_granted_ttl_counts_not_the_one_asked_for() {
    let mut lease = held(0, 0);
    assert_eq!(lease.on(at(4_000), tick(), 0.0), Action::Renew);
    let ttl = Duration::from_secs(20);
    let answer = Renewal::Renewed { counted_from: Sent::at(at(4_000)), ttl };
    lease.on(at(4_001), Event::Answered(Some(answer)), 0.0);
    assert_eq!(lease.deadline(), Some(at(24_000 - 202)));
}

#[test]
fn t1_an_older_answer_never_moves_the_deadline_back() {
    let mut lease = held(5_000, 5_000);
    let deadline = lease.deadline();
    lease.on(at(6_000), renewed(1_000), 0.0);
    assert_eq!(lease.deadline(), deadline);
}

/// Whoever looks sends nothing: a renewal that a look asked for would never be answered, and none be asked for again.
#[test]
fn r1_a_look_asks_for_no_renewal() {
    let mut lease = held(0, 0);
    assert_eq!(lease.on(at(5_000), Event::Looked, 0.0), Action::Nothing);
    assert_eq!(lease.on(at(5_000), tick(), 0.0), Action::Renew);
    assert_eq!(lease.on(at(9_898), Event::Looked, 0.0), Action::Lose(LossReason::Expired));
}

#[test]
fn r1_a_failed_renewal_is_repeated_soon_and_often() {
    let mut lease = held(0, 0);
    let (mut now, mut tries) = (0, 0);
    while lease.lost().is_none() {
        if lease.on(at(now), tick(), 0.5) == Action::Renew {
            tries += 1;
            lease.on(at(now), Event::Answered(None), 0.5);
        }
        now += 10;
    }
    assert!((5..20).contains(&tries), "{tries} tries in two thirds of the TTL");
    assert_eq!(lease.lost(), Some(LossReason::Expired));
}

#[test]
fn l3_nothing_is_renewed_after_a_loss_and_the_loss_is_told_once() {
    let mut lease = held(0, 0);
    assert_eq!(lease.on(at(10), Event::Revoked(LossReason::Deleted), 0.0), Action::Lose(LossReason::Deleted));
    for event in [tick(), renewed(20), Event::Revoked(LossReason::Closed), Event::Answered(None)] {
        assert_eq!(lease.on(at(60_000), event, 0.0), Action::Nothing);
    }
    assert_eq!((lease.lost(), lease.wake_at()), (Some(LossReason::Deleted), None));
}

#[test]
fn l4_a_doubted_lease_is_renewed_now_and_once() {
    let mut lease = held(0, 0);
    assert_eq!(lease.on(at(100), Event::Doubted, 0.0), Action::Nothing);
    assert_eq!(lease.wake_at(), Some(at(100)));
    assert_eq!(lease.on(at(100), tick(), 0.0), Action::Renew);
    // The answer that is under way may be of the time before the doubt.
    lease.on(at(110), Event::Doubted, 0.0);
    assert_eq!(lease.on(at(110), tick(), 0.0), Action::Nothing);
    assert_eq!(lease.on(at(120), renewed(100), 0.0), Action::Nothing);
    assert_eq!(lease.on(at(120), tick(), 0.0), Action::Renew);
    assert_eq!(lease.on(at(130), renewed(120), 0.0), Action::Nothing);
    assert!(lease.wake_at().unwrap() > at(3_000));
}

#[test]
fn r1_a_renewal_is_asked_for_by_ticks_only() {
    let mut lease = held(0, 0);
    // Sent by hand, and answered after the next one was due.
    assert_eq!(lease.on(at(8_000), renewed(3_000), 0.0), Action::Nothing);
    assert_eq!(lease.on(at(8_000), tick(), 0.0), Action::Renew);
}

#[test]
fn a_grant_that_does_not_expire_is_held_until_its_limit() {
    let endless = Grant { ttl: None, ..grant(0) };
    let mut lease = LeaseMachine::begin(at(0), &endless, Upkeep::default(), 0.0).unwrap();
    assert_eq!((lease.deadline(), lease.wake_at()), (None, None));
    assert_eq!(lease.on(at(u64::MAX / 1_000_000), tick(), 0.0), Action::Nothing);
    let upkeep = Upkeep { max_hold: Some(Duration::from_secs(3)), ..Upkeep::default() };
    let mut lease = LeaseMachine::begin(at(0), &endless, upkeep, 0.0).unwrap();
    assert_eq!(lease.on(at(3_000), tick(), 0.0), Action::Lose(LossReason::HeldTooLong));
}

/// What becomes of one renewal on its way.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    pass: u64,
    request_takes: u64,
    reply_takes: u64,
    fate: Fate,
    jitter: f64,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![4 => Just(Fate::Answered), 1 => Just(Fate::RequestLost), 1 => Just(Fate::ReplyLost)];
    let span = prop_oneof![3 => 0..50_u64, 1 => 0..4_000_u64];
    (span.clone(), span.clone(), span, fate, 0.0..1.0).prop_map(|(pass, request_takes, reply_takes, fate, jitter)| {
        Step { pass, request_takes, reply_takes, fate, jitter }
    })
}

/// A store that grants by its own clock, which runs at `rate` millionths of the client's.
struct ModelStore {
    rate: u64,
    expires: u64,
}

impl ModelStore {
    fn clock(&self, millis: u64) -> u64 {
        millis * self.rate
    }

    fn renew(&mut self, millis: u64) -> bool {
        let ours = self.holds(millis);
        if ours {
            self.expires = self.clock(millis) + TTL.as_millis() as u64 * 1_000_000;
        }
        ours
    }

    fn holds(&self, millis: u64) -> bool {
        self.clock(millis) < self.expires
    }
}

proptest! {
    /// T1, L1, L3: whatever is lost or late, as long as the two clocks' rates differ by less than the allowance,
    /// the window in which the holder believes lies inside the lease that the store keeps.
    #[test]
    fn t1_belief_lies_inside_the_stores_lease(
        rate in 991_000..1_009_000_u64,
        first_takes in (0..6_000_u64, 0..6_000_u64),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut store = ModelStore { rate, expires: u64::MAX };
        store.renew(first_takes.0);
        let mut now = first_takes.0 + first_takes.1;
        let Ok(mut lease) = LeaseMachine::begin(at(now), &grant(0), Upkeep::default(), 0.3) else {
            prop_assert!(now + 102 >= TTL.as_millis() as u64, "only a late reply is refused");
            return Ok(());
        };
        // (sent, arrives, answered, fate) of the one renewal under way.
        let mut under_way: Option<(u64, u64, u64, Fate)> = None;
        let mut applied: Option<bool> = None;
        for step in steps {
            for _ in 0..=step.pass {
                let deadline = lease.deadline();
                if let Some((sent, arrives, answered, fate)) = under_way {
                    if now == arrives && !matches!(fate, Fate::RequestLost) {
                        applied = Some(store.renew(now));
                    }
                    if now >= answered {
                        let answer = match (fate, applied) {
                            (Fate::Answered, Some(true)) =>
                                Some(Renewal::Renewed { counted_from: Sent::at(at(sent)), ttl: TTL }),
                            (Fate::Answered, Some(false)) => Some(Renewal::Lost(LossReason::Expired)),
                            _ => None,
                        };
                        under_way = None;
                        lease.on(at(now), Event::Answered(answer), step.jitter);
                        if answer.is_none() {
                            prop_assert_eq!(lease.deadline(), deadline, "an unknown answer moved the deadline");
                        }
                    }
                }
                let was_lost = lease.lost().is_some();
                if lease.on(at(now), tick(), step.jitter) == Action::Renew {
                    prop_assert!(!was_lost, "renewed after the loss");
                    prop_assert!(under_way.is_none(), "two renewals under way");
                    let arrives = now + 1 + step.request_takes;
                    under_way = Some((now, arrives, arrives + step.reply_takes, step.fate));
                    applied = None;
                }
                prop_assert!(lease.deadline() >= deadline, "the deadline moved back");
                if lease.lost().is_none() {
                    prop_assert!(store.holds(now), "believed at {now} ms what the store had let go");
                }
                now += 1;
            }
        }
    }
}
