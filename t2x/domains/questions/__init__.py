"""Questions about pictures: one encoder over text and picture, the task and its answers."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.questions.one_stream import *
  from t2x.domains.questions.picture_questions import *
else:
  __getattr__, __dir__ = exports(__name__)
