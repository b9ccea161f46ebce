"""The member of a group: when it gives out callbacks."""

from __future__ import annotations

from typing import Any

from rayka.client.group.member import GroupMember, RebalanceCallback
from rayka.client.group.membership import Action, ActionKind, Membership
from rayka.client.group.subscription import Identity


class EndsAfterALook(RebalanceCallback):
    """It ends in its thread as soon as the loop has seen that it runs."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "has_ended":
            self.has_ended = True
        return value


def test_a_callback_that_ends_while_the_next_step_is_looked_for_is_not_given_out_again() -> None:
    membership = Membership(Identity("g", "m", None, "rack", "client", "host", "range", 7000), 5000, 10)
    nothing: Any = None
    member = GroupMember(membership, nothing, nothing, nothing, lambda: None)
    member._callback = EndsAfterALook(lambda _: None, [], Action(ActionKind.REVOKE, ()), runs=[object()])
    assert member.step() is None, "nor does this end the action a second time"
    assert member._callback is not None
