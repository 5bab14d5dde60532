"""One folder per modality, with all that only it needs: embedder, model, data, task, metrics and evaluators.

A domain imports no other domain. Only its `interop.py` (families and tasks of model folders) and `look.py` (drawings of
`t2x look`) import `t2x.interop` and `t2x.look`, which find them by file name; nothing else imports these two.
"""
