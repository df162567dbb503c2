"""From a record to figures, budgets, verdicts and results: offline, without torch.

    samples/    from the samples of ranks to the figures of a launch, with its checks
    timeline/   from profiler traces to the budget of a step, its losses and remedies
    judging/    from pairs of launches to verdicts; judge.judge_values decides PASS
    choices/    batch size, compressor and remedies
    results     each verdict joined with its figure: what every output prints
    ladder      rows of the scaling table; rungs has profiled world sizes
    verify      recompute a record from its samples; audit checks that it is whole
    compare     two runs side by side
    forecast    launches that a run still needs, and their time

This folder imports neither ``launch``, ``measure``, ``training`` nor ``interface``.
"""
