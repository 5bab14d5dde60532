"""Questions about pictures: one encoder over text and picture, the task and its answers."""

from t2x.domains.questions.one_stream import *
from t2x.domains.questions.picture_questions import *
