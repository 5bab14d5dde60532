"""Tokenizers: text to token ids and back.

A `TokenizerConfig` is a frozen dataclass with the vocabulary size; its `fit` returns the tokenizer, which
is trained at first use and cached. The tokenizers that t2x trains share the special ids pad 0, eos 1, unk 2,
bos 3 and mask 4. Tokenizers read from model folders (`HubTokenizer`) have the special ids of the folder.
"""
