"""Asks the deployment's model for drafts, within bounds.

Theory of operation: a replica has a number of calls at once, of which a caller has its share of
what is free, and a caller a number of calls a minute: each costs the operator money. What the model
does not give in time or in form is no error: the draft by words is told, with a note of the reason.
Callers without an account of their own are told drafts by words alone, because what bounds a caller
bounds none of them. Decision planning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from core.planning.offers import Offer
from core.planning.plan import Plan
from core.planning.prompt import questions
from core.planning.proposal import UnusableAnswer, plan_of_answer
from core.settings import Settings
from core.trust.access import BY_ADDRESS, Principal
from federation.chat_completions import ChatModel, ModelUnavailable, complete_chat
from serve_app.callers.shares import Shares
from serve_app.callers.windows import AddressWindows
from serve_app.http.compiling import IN_LOOP_BYTES_MAX, in_thread

log = logging.getLogger("callboard.api")

CALLERS_MAX: Final = 4_096
# Of one replica.
CALLS_MAX: Final = 8
CALLER_RATE: Final = 10


class NoModelDraft(Exception):
    """The model made no draft; the text says why, for callers."""


class ModelDrafts:
    """The calls of one replica.

    Args:
        model: which is asked.
        settings: how large a draft may be, and the share of a caller.
        calls_max: calls at once.
        rate: calls a minute and caller.
    """

    def __init__(
        self,
        model: ChatModel,
        settings: Settings,
        *,
        calls_max: int = CALLS_MAX,
        rate: int = CALLER_RATE,
    ) -> None:
        self._model = model
        self._nodes_max = settings.nodes_max
        self._places = Shares(calls_max, settings.share_of_free)
        self._calls = AddressWindows(rate, CALLERS_MAX)

    def __repr__(self) -> str:
        return f"<ModelDrafts of {self._model.name} {self._places}>"

    async def propose(
        self, description: str, offers: Sequence[Offer], caller: Principal, clock_ms: int
    ) -> Plan:
        """Return the model's draft, as far as what agents offer makes it one.

        Args:
            description: in the caller's words, which the model gets.
            offers: among which it chooses, best first.
            caller: on whose account the call is.
            clock_ms: a monotonic clock, milliseconds.

        Raises:
            NoModelDraft: there is none.
        """
        if caller.is_stranger or caller.rate_class == BY_ADDRESS:
            raise NoModelDraft("the model drafts for callers with an account of their own alone")
        if not self._places.take(caller.did):
            raise NoModelDraft("the model is busy")
        try:
            if not self._calls.take(caller.did, clock_ms).is_allowed:
                raise NoModelDraft("the caller's calls to the model in this minute are used up")
            size = IN_LOOP_BYTES_MAX + 1
            asked = await in_thread(caller.did, size, partial(questions, description, offers))
            answer = await complete_chat(self._model, asked)
            read = partial(plan_of_answer, answer, description, offers, nodes_max=self._nodes_max)
            return await in_thread(caller.did, size, read)
        except ModelUnavailable as error:
            log.warning("no draft by the model did=%s error=%s", caller.did, error)
            raise NoModelDraft("the model did not answer in time or in its form") from None
        except UnusableAnswer as error:
            log.warning("no draft by the model did=%s error=%s", caller.did, error)
            raise NoModelDraft(f"the model's draft is not used: {error}") from None
        finally:
            self._places.give_back(caller.did)


def model_drafts_of(settings: Settings, **bounds: int) -> ModelDrafts | None:
    """Return the calls to the model that these settings name, None where they name none.

    Args:
        bounds: as of `ModelDrafts`.
    """
    if not settings.model_url:
        return None
    model = ChatModel(
        url=settings.model_url,
        name=settings.model_name,
        key=settings.model_key,
        timeout_s=settings.model_timeout_ms / 1_000,
        egress_allow=settings.egress_allow,
    )
    return ModelDrafts(model, settings, **bounds)
