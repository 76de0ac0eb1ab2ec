"""Notes whom to tell of an event's change, in the very transaction that makes the change.

So a change that is stored is told, and one that is not stored is not, whatever is killed in between; a queue elsewhere
(Redis, memory) would have to be written before or after and could lose or invent one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import event as sql_event
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.config import WatchwordConfig
from pipeline.config.delivery import CHANGES, MQTT, TargetConfig
from pipeline.delivery.facts import Facts, Told, news_of
from pipeline.delivery.rules import Rules
from pipeline.messages import DescriptionState, EventState
from pipeline.reasons import Reason
from pipeline.store.deliveries import count_outcome, forget
from pipeline.store.schema import AlertRow, DeliveryRow, EventRow

OLD_S = 300.0
"""An event that is over for so long and was never told of (there were no targets then) is no news any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a target wants to hear of."""

    name: str
    events: frozenset[str]
    rules: frozenset[str]
    max_waiting: int

    @classmethod
    def of(cls, name: str, config: TargetConfig) -> Plan:
        return cls(name, frozenset(config.events), frozenset(config.rules), config.max_waiting)


def plans_of(config: WatchwordConfig) -> list[Plan]:
    """All configured targets."""
    plans = [Plan.of(hook.name, hook) for hook in config.webhooks]
    return [*plans, Plan.of(MQTT, config.mqtt)] if config.mqtt.enabled else plans


class Outbox:
    """Thread-safe: it holds nothing but the configuration.

    Args:
        wake: called after a transaction that left something to deliver, in whatever thread that ran in.
    """

    def __init__(self, rules: Rules, plans: Sequence[Plan], wake: Callable[[], None] = lambda: None) -> None:
        self._rules = rules
        self._plans = tuple(plans)
        self.wake = wake

    @classmethod
    def of(cls, config: WatchwordConfig) -> Outbox | None:
        """None when there is neither a rule nor a target."""
        plans = plans_of(config)
        return cls(Rules(config.alerts), plans) if plans or config.alerts else None

    def note(self, session: Session, event: EventRow, now: float) -> None:
        """Matches rules, and notes for each target what is new. Costs next to nothing when nothing is."""
        facts = _facts_of(event)
        told = Told.from_json(event.told) if event.told is not None else None
        if told is None and facts.over and now - facts.last_seen > OLD_S:
            told = Told(muted=True)
            event.told = told.to_json()
        if told is not None and told.muted:
            return
        changes, now_told = news_of(told, facts)
        known = (*(event.rules or ()), *now_told.quiet)
        matched, quiet = self._match(session, facts, known, now)
        if matched:
            event.rules = [*(event.rules or ()), *matched]
        now_told = replace(now_told, quiet=(*now_told.quiet, *quiet))
        if now_told != told:
            event.told = now_told.to_json()
        if not changes and not matched:
            return
        noted = [self._put(session, plan, event, changes, matched, now) for plan in self._plans]
        if any(noted):
            sql_event.listen(session, "after_commit", lambda _: self.wake(), once=True)

    def _match(self, session: Session, facts: Facts, known: Sequence[str], now: float) -> tuple[list[str], list[str]]:
        """Names of rules that match now, and of those that would if they hadn't matched another event just before."""
        matched: list[str] = []
        quiet: list[str] = []
        for rule in self._rules.matching(facts, known):
            row = session.get(AlertRow, (rule.name, facts.camera), with_for_update=True)
            if row is None:
                row = AlertRow(rule=rule.name, camera=facts.camera, last=now, matched=1, cooled=0)
                session.add(row)
                matched.append(rule.name)
            elif now - row.last < rule.cooldown_s:
                row.cooled += 1
                quiet.append(rule.name)
            else:
                row.last, row.matched = now, row.matched + 1
                matched.append(rule.name)
        return matched, quiet

    def _put(
        self, session: Session, plan: Plan, event: EventRow, changes: Sequence[str], matched: Sequence[str], now: float
    ) -> bool:
        """Notes it for one target; whether there is anything to deliver to it."""
        if plan.rules and plan.rules.isdisjoint(event.rules or ()):
            return False
        wanted = plan.events & set(changes)
        # A target with rules hears of a match in any case: it is where its story begins.
        if plan.rules & set(matched) or (matched and not plan.rules and "matched" in plan.events):
            wanted |= {"matched"}
        if not wanted:
            return False
        row = session.get(DeliveryRow, (plan.name, event.id), with_for_update=True)
        if row is None:
            row = DeliveryRow(target=plan.name, event_id=event.id, sequence=0, changes=[], attempts=0)
            session.add(row)
        row.changes = [change for change in CHANGES if change in wanted or change in row.changes]
        if row.due is None:
            row.since = row.due = now
            session.flush()
            _make_room(session, plan, row)
        return True


def _make_room(session: Session, plan: Plan, newest: DeliveryRow) -> None:
    """Drops the oldest of what waits for a target when there is more than its bound."""
    waiting = select(DeliveryRow).where(DeliveryRow.target == plan.name, DeliveryRow.due.is_not(None))
    count = session.scalar(select(func.count()).select_from(waiting.subquery())) or 0
    if count <= plan.max_waiting:
        return
    others = waiting.where(DeliveryRow.event_id != newest.event_id).order_by(DeliveryRow.since)
    dropped = list(session.scalars(others.limit(count - plan.max_waiting).with_for_update(skip_locked=True)))
    for row in dropped:
        forget(row)
    count_outcome(session, plan.name, Reason.DELIVERY_QUEUE_FULL.value, len(dropped))


def _facts_of(event: EventRow) -> Facts:
    return Facts(
        camera=event.camera,
        label=event.label,
        zones=tuple(event.zones or ()),
        state=EventState(event.state),
        description_state=DescriptionState(event.description_state),
        description=event.description,
        attributes=event.attributes,
        reason=Reason(event.reason),
        first_seen=event.first_seen,
        last_seen=event.last_seen,
    )
