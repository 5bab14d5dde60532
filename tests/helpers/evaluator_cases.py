"""A small model, a task and its data for every evaluator; other processes import this too."""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tiny_tasks
from flax import nnx

import t2x.tasks
from t2x.data import Bytes, Source
from t2x.decode import Greedy
from t2x.domains.captions import CaptionScores
from t2x.domains.detection import AveragePrecision
from t2x.domains.pixels import CompletedImages, LowerPixels
from t2x.domains.questions import PictureAnswers, PictureQuestions
from t2x.domains.retrieval import CaptionContrast, Retrieval, ZeroShot
from t2x.domains.segmentation import MeanIoU, PredictedMasks
from t2x.domains.series import DrawnForecasts, ForecastScores
from t2x.domains.speech import WordErrors
from t2x.experiments import read_experiment
from t2x.parallel import Mesh
from t2x.samples import DigitRows, DrawnScenes, DrawnTexts, scene_is_right
from t2x.tasks import ImageModality, LikeliestAnswer, LikeliestLabel
from t2x.train.evaluation import Inference
from t2x.train.program import Program

ROOT = Path(__file__).parents[2]
SMALL = ('d_model=16', 'num_layers=1', 'MLP.hidden_dim=16', 'dropout_rate=0.0')
BYTES = (*SMALL, 'vocab_size=264')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples(Source):
  """Examples in memory, the same in each split."""

  rows: Sequence[Mapping[str, Any]] = dataclasses.field(hash=False, repr=False)

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return self.rows

  def fingerprint(self):
    return f'{len(self.rows)} {sorted(self.rows[0])}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """What an evaluator is tried with.

  Attributes:
    model: a config with a model.
    bindings: further bindings.
    task: returns the task, given a folder with the data of `tiny_tasks`.
    evaluator: the evaluator.
    higher: scores that are better if they are higher, whose worst value is 0, with the largest
      score of constant outputs.
    lower: scores that are better if they are lower, with the least score of constant outputs.
    worst: worst values of scores in `higher` that are not 0.
    other: further metrics that depend on the model; all others must not.
  """

  model: str
  task: Callable[[Path], Any]
  evaluator: Any
  bindings: Sequence[str] = ()
  higher: Mapping[str, float] = dataclasses.field(default_factory=dict)
  lower: Mapping[str, float] = dataclasses.field(default_factory=dict)
  worst: Mapping[str, float] = dataclasses.field(default_factory=dict)
  other: Sequence[str] = ()

  def experiment(self, folder: Path, mesh: Mesh = Mesh()) -> Any:
    """Returns the experiment with the evaluator as 'e'."""
    read = read_experiment([ROOT / f'configs/{self.model}.gin'], self.bindings)
    changed = {'task': self.task(folder), 'evaluations': {'e': self.evaluator}, 'mesh': mesh}
    return dataclasses.replace(read, trainer=None, **changed)


def tiny(name):
  """The task of this name of `tiny_tasks`."""
  return lambda folder: tiny_tasks.make(folder)[name]


def digits_of_rows():
  """Images of digits with their words, and their number as the label."""
  rows = DigitRows(longest=1, train_examples=20).load('train')
  labels = {word: number for number, word in enumerate(CLASSES)}
  return [row | {'label': labels[row['target']]} for row in rows]


def contrast(folder):
  return CaptionContrast(
    source=Examples(rows=digits_of_rows()),
    modality=ImageModality(shape=(8, 8, 1)),
    target_length=8,
    classes=CLASSES,
    tokenizer=Bytes(),
  )


def scene_captions(folder):
  return t2x.tasks.Captions(
    source=DrawnScenes(examples={'train': 20, 'validation': 20}),
    modality=ImageModality(shape=(16, 16, 3)),
    target_length=8,
    strategy=Greedy(),
    tokenizer=Bytes(),
  )


def tiny_pairs(folder):
  pairs = tiny_tasks.make(folder)['Translation']
  return dataclasses.replace(pairs, tokenizer=Bytes(), pieces=None, strategy=Greedy())


def text(folder):
  source = tiny_tasks.make(folder)['CausalLM'].source
  return t2x.tasks.CausalLM(source=source, length=32, tokenizer=Bytes())


def images(folder):
  """Images of the first class, and a few of others."""
  rng = np.random.default_rng(0)
  rows = [
    {'image': rng.integers(0, 256, (8, 8, 1)).astype(np.uint8), 'label': max(0, i - 10)}
    for i in range(20)
  ]
  return t2x.tasks.ImageClassification(
    source=Examples(rows=rows), image_shape=(8, 8, 1), num_classes=10
  )


def pixels(folder):
  return dataclasses.replace(tiny_tasks.make(folder)['PixelLM'], source=images(folder).source)


def drawings(folder):
  return dataclasses.replace(tiny_tasks.make(folder)['TextToImage'], image_shape=(16, 16, 3))


def two_classes(folder):
  """Three of four texts have the first class."""
  rows = [{'text': 'ab' * (i % 5 + 1), 'label': 'ab'[i % 4 == 0]} for i in range(21)]
  return t2x.tasks.SequenceClassification(
    source=Examples(rows=rows), length=16, labels=('a', 'b'), tokenizer=Bytes()
  )


def ratings(folder):
  rng = np.random.default_rng(0)
  rows = [{'text': 'ab' * (i % 5 + 1), 'score': 1000 + rng.normal()} for i in range(21)]
  return t2x.tasks.TextRegression(
    source=Examples(rows=rows), length=16, score='score', tokenizer=Bytes()
  )


def spans(folder):
  """Half of the questions have no answer; the others are answered by the first word."""
  rows = [
    {'question': 'who', 'context': f'{word} sat here', 'answers': [word] * (i % 2), 'starts': [0] * (i % 2)}
    for i, word in enumerate(['cat', 'dog', 'red', 'mat', 'sun', 'ant', 'bee'] * 3)
  ]  # fmt: skip
  return t2x.tasks.SpanPrediction(
    source=Examples(rows=rows), length=32, stride=8, tokenizer=Bytes()
  )


def cloze(folder):
  rows = [{'text': f'the {letter} sat'} for letter in 'abcabcd' * 3]
  return t2x.tasks.MaskedLM(source=Examples(rows=rows), length=16, tokenizer=Bytes())


def few_shot(scoring):
  """Words of one length, so that all answers of a question are as likely for a constant model."""
  rows = [{'source': label[::-1], 'target': label} for label in LABELS]
  return t2x.tasks.FewShot(k=1, source=Examples(rows=rows), scoring=(scoring,), batch_size=8)


def questions(folder):
  rng = np.random.default_rng(0)
  rows = [
    {
      'image': rng.integers(0, 256, (8, 8, 3)).astype(np.uint8),
      'question': 'ab'[i % 2],
      'answer': ('yes', 'no', 'none')[i % 4 % 3],
    }
    for i in range(21)
  ]
  return PictureQuestions(
    source=Examples(rows=rows),
    modality=ImageModality(shape=(8, 8, 3)),
    answers=('yes', 'no', 'none'),
    length=4,
    tokenizer=Bytes(),
  )


LABELS = tuple(b + a for a in 'abcde' for b in 'fghi')
CLASSES = ('zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine')
CLASSIFIER = [
  'LanguageModel.head=@SequenceClassifier',
  'SequenceClassifier.pool=@mean_tokens',
  'SequenceClassifier.classifier=@Classifier',
  *BYTES,
]
TOKENS = ['LanguageModel.head=@TokenClassifier', *BYTES]
CONTRAST = [
  *('PatchEmbedding.channels=1', 'PatchEmbedding.patch_size=4', 'grid=2', 'length=8'),
  *BYTES[:3],
  BYTES[-1],
]
FORECASTS = [
  *SMALL,
  *('context=6', 'horizon=2', 'SeriesPatches.patch_length=3', 'SeriesPatches.stride=3'),
]
PIXELS = [*SMALL, 'num_heads=2', 'LMHead.unpredicted=0']
DETECTOR = [
  *SMALL[:3],
  *('width=8', 'num_queries=4', 'MultiHeadAttention.num_heads=2'),
]
IMAGES = [*SMALL, 'grid=2']
QUESTIONS = [
  *('d_model=16', 'MLP.hidden_dim=16', 'dropout_rate=0.0'),
  *('length=4', 'grid=2', 'PatchEmbedding.patch_size=4', 'MultiHeadAttention.num_heads=4'),
  *('Stack.num_layers=1', 'AnswerClassifier.num_classes=3', 'TokenEmbedding.vocab_size=264'),
]
CHOICES = {'choice_accuracy': 0, 'choice_accuracy_per_byte': 0}
RECALLS = {f'{side}recall_{k}': 0 for side in ('', 'reverse_') for k in (1, 10)}
# The counterpart is the last of 20.
LAST = {'mean_reciprocal_rank': 1 / 20, 'reverse_mean_reciprocal_rank': 1 / 20}
TEXTS = {'bleu': 0, 'chrf': 0, 'exact_match': 0}

CASES = {
  'losses of tokens': Case(
    model='models/small_decoder',
    bindings=BYTES,
    task=text,
    evaluator=t2x.tasks.Losses(),
    higher={'accuracy': 0},
    lower={'loss': 5},
    other=['perplexity', 'bits_per_byte'],
  ),
  'losses of pairs': Case(
    model='models/small_clip',
    bindings=CONTRAST,
    task=contrast,
    evaluator=t2x.tasks.Losses(),
    higher={'accuracy': 0},
    lower={'loss': 0},
    other=['factor'],
  ),
  'losses of classes': Case(
    model='models/small_encoder_without_head',
    bindings=[*CLASSIFIER, 'Classifier.num_classes=2'],
    task=two_classes,
    evaluator=t2x.tasks.Losses(),
    higher={'accuracy': 0, 'macro_f1': 0, 'f1': 0},
    lower={'loss': 0},
  ),
  'losses of images': Case(
    model='models/small_vit',
    bindings=IMAGES,
    task=images,
    evaluator=t2x.tasks.Losses(),
    higher={'accuracy': 0, 'top5_accuracy': 0},
    lower={'loss': 0},
  ),
  'losses of entities': Case(
    model='models/small_encoder_without_head',
    bindings=[*TOKENS, 'TokenClassifier.num_classes=3'],
    task=tiny('WordClassification'),
    evaluator=t2x.tasks.Losses(),
    higher=dict.fromkeys(('accuracy', 'entity_precision', 'entity_recall', 'entity_f1'), 0),
    lower={'loss': 0},
  ),
  'losses of boxes': Case(
    model='models/small_detr',
    bindings=DETECTOR,
    task=tiny('Detection'),
    evaluator=t2x.tasks.Losses(num_examples=5),
    higher={'accuracy': 0, 'iou': 0.5},
    lower={'loss': 0, 'boxes': 0},
  ),
  'losses of forecasts': Case(
    model='models/small_patchtst',
    bindings=FORECASTS,
    task=tiny('Forecast'),
    evaluator=t2x.tasks.Losses(),
    lower={'loss': 0, 'mae': 0},
  ),
  'losses of spans': Case(
    model='models/small_encoder_without_head',
    bindings=[*TOKENS, 'TokenClassifier.num_classes=2', 'TokenEmbedding.num_types=2'],
    task=spans,
    evaluator=t2x.tasks.Losses(),
    higher={'span_accuracy': 0},
    lower={'loss': 0},
  ),
  'samples': Case(
    model='models/small_decoder',
    bindings=BYTES,
    task=text,
    evaluator=t2x.tasks.Samples(prompts=['the cat'], num_tokens=4),
  ),
  'translations': Case(
    model='models/small_encoder_decoder',
    bindings=BYTES,
    task=tiny_pairs,
    evaluator=t2x.tasks.Translations(batch_size=8),
    higher=TEXTS,
  ),
  'captions': Case(
    model='models/small_captioner',
    bindings=['PatchEmbedding.channels=3', *BYTES],
    task=scene_captions,
    evaluator=CaptionScores(batch_size=8, rules={'facts': scene_is_right}, num_examples=9),
    higher=TEXTS | {'facts': 0},
  ),
  'word errors': Case(
    model='models/small_captioner',
    bindings=['PatchEmbedding.channels=3', *BYTES],
    task=scene_captions,
    evaluator=WordErrors(batch_size=8, num_examples=9),
    higher={'exact_match': 0},
    lower={'word_error_rate': 1, 'character_error_rate': 0.7},
  ),
  'answers': Case(
    model='models/small_encoder_without_head',
    bindings=[*TOKENS, 'TokenClassifier.num_classes=2', 'TokenEmbedding.num_types=2'],
    task=spans,
    evaluator=t2x.tasks.Answers(),
    higher={'exact_match': 0, 'f1': 0},
  ),
  'alignments': Case(
    model='models/small_encoder_decoder',
    bindings=BYTES,
    task=tiny_pairs,
    evaluator=t2x.tasks.AlignmentAgreement(),
    higher={'dictionary': 0.184, 'diagonal': 0.467, 'either': 0.484},
  ),
  'average precision': Case(
    model='models/small_detr',
    bindings=DETECTOR,
    task=tiny('Detection'),
    evaluator=AveragePrecision(num_examples=5),
    higher={'ap': 0, 'ap50': 0, 'ap75': 0},
  ),
  'retrieval': Case(
    model='models/small_clip',
    bindings=CONTRAST,
    task=contrast,
    evaluator=Retrieval(),
    higher=RECALLS | LAST,
    worst=LAST,
  ),
  'zero shot': Case(
    model='models/small_clip',
    bindings=CONTRAST,
    task=contrast,
    evaluator=ZeroShot(),
    higher={'accuracy': 0, 'top_5_accuracy': 0},
  ),
  'class scores': Case(
    model='models/small_encoder_without_head',
    bindings=[*CLASSIFIER, 'Classifier.num_classes=2'],
    task=two_classes,
    evaluator=t2x.tasks.ClassScores(),
    higher={'accuracy': 0, 'macro_f1': 0, 'f1': 0, 'matthews': 0},
  ),
  'cloze': Case(
    model='models/small_encoder',
    bindings=BYTES,
    task=cloze,
    evaluator=t2x.tasks.Cloze(pattern=r'the (?P<letter>\w) sat', batch_size=8),
    higher={'letter': 0, 'all': 0},
  ),
  'exact match': Case(
    model='models/small_decoder',
    bindings=BYTES,
    task=text,
    evaluator=few_shot(t2x.tasks.ExactMatch(num_tokens=3)),
    higher={'exact_match': 0},
  ),
  'likeliest answer': Case(
    model='models/small_decoder',
    bindings=BYTES,
    task=text,
    evaluator=few_shot(LikeliestAnswer(num_wrong=2)),
    higher=CHOICES,
  ),
  'likeliest label': Case(
    model='models/small_decoder',
    bindings=BYTES,
    task=text,
    evaluator=few_shot(LikeliestLabel(labels=LABELS)),
    higher=CHOICES,
  ),
  'forecast scores': Case(
    model='models/small_patchtst',
    bindings=FORECASTS,
    task=tiny('Forecast'),
    evaluator=ForecastScores(seasons=[3]),
    higher={'coverage': 1, 'coverage/a': 1, 'coverage/b': 1},
    lower={f'{score}{channel}': 0 for score in ('mase', 'crps') for channel in ('', '/a', '/b')},
  ),
  'sampled forecasts': Case(
    model='models/small_series_transformer',
    bindings=[*SMALL, 'channels=2', 'context=4', 'horizon=2', 'lags=[1,2]', "calendar=['hour']"],
    task=tiny('AutoregressiveForecast'),
    evaluator=ForecastScores(seasons=[3]),
    higher={'coverage': 1, 'coverage/a': 1, 'coverage/b': 1},
    lower={f'{score}{channel}': 0 for score in ('mase', 'crps') for channel in ('', '/a', '/b')},
  ),
  'drawn forecasts': Case(
    model='models/small_patchtst',
    bindings=FORECASTS,
    task=tiny('Forecast'),
    evaluator=DrawnForecasts(seasons=[3]),
  ),
  'questions about pictures': Case(
    model='models/vilt_b32',
    bindings=QUESTIONS,
    task=questions,
    evaluator=PictureAnswers(),
    higher={'accuracy': 0, 'accuracy_other_picture': 0},
  ),
  'masks': Case(
    model='runs/segformer_digit_masks',
    task=tiny('SemanticSegmentation'),
    evaluator=MeanIoU(num_examples=5),
    higher={'mean_iou': 0, 'mean_accuracy': 0, 'pixel_accuracy': 0},
  ),
  'drawn masks': Case(
    model='runs/segformer_digit_masks',
    task=tiny('SemanticSegmentation'),
    evaluator=PredictedMasks(num_examples=5),
  ),
  'classified images': Case(
    model='models/small_vit',
    bindings=IMAGES,
    task=images,
    evaluator=t2x.tasks.ClassifiedImages(),
  ),
  'attention maps': Case(
    model='models/small_vit',
    bindings=IMAGES,
    task=images,
    evaluator=t2x.tasks.AttentionMaps(),
  ),
  'correlations': Case(
    model='models/small_encoder_without_head',
    bindings=[*CLASSIFIER, 'Classifier.num_classes=1'],
    task=ratings,
    evaluator=t2x.tasks.Correlations(),
    higher={'pearson': 0, 'spearman': 0},
  ),
  'completed images': Case(
    model='models/image_gpt_s',
    bindings=[*PIXELS, 'num_pixels=16', 'TokenEmbedding.vocab_size=16'],
    task=pixels,
    evaluator=CompletedImages(hidden=LowerPixels(), num_examples=5, batch_size=8),
    higher={'accuracy': 0.4},
  ),
  'drawn texts': Case(
    model='models/image_gpt_s',
    bindings=[*PIXELS, 'num_pixels=326', 'TokenEmbedding.vocab_size=300'],
    task=drawings,
    evaluator=DrawnTexts(num_examples=20, batch_size=8),
    # Noise has the relation of most texts.
    higher={'match': 0, 'colours': 0, 'shapes': 0, 'relation': 0.7},
  ),
}


@functools.lru_cache(maxsize=2)
def initial(program: Program) -> dict[str, np.ndarray]:
  """Returns the initial parameters of a program, with noise."""
  rng = np.random.default_rng(0)
  model = program.experiment.complete_model()(rngs=nnx.Rngs(0))
  return {
    name: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape).astype(np.float32)
    for name, leaf in program.blueprint.params(model).items()
  }


def params_of(program: Program, change: Callable[[np.ndarray], np.ndarray]) -> dict[str, jax.Array]:
  """Returns parameters for the devices of a program: `change` of initial ones with noise."""
  params = {name: change(leaf) for name, leaf in initial(program).items()}
  shardings = {name: leaf.sharding for name, leaf in program.params_abstract().items()}
  return jax.device_put(params, shardings)


def inference_of(name: str, folder: Path, batch_size: int, mesh: Mesh = Mesh()) -> Inference:
  """Returns the programs of a case, which evaluations with several parameters share.

  Args:
    name: name of the case.
    folder: folder with the data of `tiny_tasks`.
    batch_size: rows per batch.
    mesh: the devices.
  """
  experiment = CASES[name].experiment(folder, mesh)
  inference = Inference(experiment, experiment.task.fit_tokenizer(), batch_size=batch_size)
  evaluator = inference.experiment.evaluations['e']
  evaluator.check(inference.task, inference.program.blueprint.shapes)
  return inference


def evaluate(
  inference: Inference, change: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> tuple[dict[str, Any], list[Any]]:
  """Returns the metrics and the samples of a case by the evaluation of runs.

  Args:
    inference: programs of the case.
    change: of the parameters.
  """
  result = inference.evaluators(params_of(inference.program, change), ['e'])
  metrics = {name.removeprefix('e/'): value for name, value in result.metrics.items()}
  return metrics, list(result.samples)


if __name__ == '__main__':
  # On the devices of the process, 16 rows at a time.
  for case in sys.argv[2:]:
    mesh = Mesh(data=jax.device_count())
    print(json.dumps(evaluate(inference_of(case, Path(sys.argv[1]), 16, mesh))), flush=True)
