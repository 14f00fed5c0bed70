"""Several workers on one port: processes that serve, and a parent that passes connections to them.

The parent (`cohort.workers.parent`) accepts connections and passes each to the worker with the
fewest (`spreading`, `passing`). It starts, watches and replaces workers (`roster`,
`worker_process`). Workers exchange messages through the parent (`link`, `switchboard`), so that
each worker can report on all. `host_plane` asks the others (`siblings`), whose replies come from
`answers`. `judging` judges rollouts by the counts of all workers. The parent imports only modules
that it needs.
"""
