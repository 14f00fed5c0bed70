"""Several workers on one port: processes that serve, and the parent that gives them connections.

A parent (`cohort.workers.parent`) accepts connections and passes each to the worker that has the
fewest (`spreading`, `passing`); it starts, watches and replaces workers (`roster`,
`worker_process`). Workers ask each other by way of it (`link`, `switchboard`), so that any of them
can say how all are: `host_plane` asks the others (`siblings`) what `answers` answers, and `judging`
judges rollouts by what all have counted. The parent imports nothing of that.
"""
