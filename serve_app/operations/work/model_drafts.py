"""Requests drafts of workflows from the deployment's language model, within limits.

Theory of operation: each call of the model costs the operator money. So a replica limits the
concurrent calls, and one caller may have only a share of the unused ones, and only a few calls per
minute. A caller that is over its limits, or for which the model makes no usable draft, gets the
draft made by matching words, with a note of the reason. Callers without an account always get this
draft: limits per caller do not bound them, because anyone can make new DIDs. Decision planning.
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
from serve_app.callers.call_windows import CallWindows
from serve_app.callers.shares import Shares
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread

log = logging.getLogger("callboard.api")

# Callers whose calls of the current minute are counted.
CALLERS_MAX: Final = 4_096
# Concurrent calls of one replica.
CALLS_MAX: Final = 8
# Calls of one caller per minute.
CALLER_RATE: Final = 10


class NoModelDraft(Exception):
    """The model was not called, or made no usable draft. The caller sees the text as a note."""


class ModelDrafts:
    """The calls of one replica to the language model.

    Args:
        model: the model.
        settings: gives `nodes_max`, and the share of the unused calls that a caller may have.
        calls_max: concurrent calls, 1 or more.
        rate: calls of one caller per minute.
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
        self._calls = CallWindows(rate, CALLERS_MAX)

    def __repr__(self) -> str:
        return f"<ModelDrafts of {self._model.name} {self._places}>"

    async def propose(
        self, description: str, offers: Sequence[Offer], caller: Principal, clock_ms: int
    ) -> Plan:
        """Return the model's draft of a workflow.

        Args:
            description: the caller's description, which is sent to the model.
            offers: the capabilities that the model may choose, best first.
            caller: the caller, under whose DID the call is counted.
            clock_ms: the time of a monotonic clock, in milliseconds.

        Raises:
            NoModelDraft: the caller may not call the model now, or the model gave no usable draft.
        """
        if caller.is_stranger or caller.rate_class == BY_ADDRESS:
            raise NoModelDraft("the model is used only for callers with an account")
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
            raise NoModelDraft(
                "the model did not answer in time, or its answer had a wrong form"
            ) from None
        except UnusableAnswer as error:
            log.warning("no draft by the model did=%s error=%s", caller.did, error)
            raise NoModelDraft(f"the model's draft is not used: {error}") from None
        finally:
            self._places.give_back(caller.did)


def model_drafts_of(settings: Settings, **bounds: int) -> ModelDrafts | None:
    """Return the `ModelDrafts` for the model in the settings; None without a model.

    Args:
        settings: the deployment's settings.
        bounds: `calls_max` and `rate` of `ModelDrafts`.
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
