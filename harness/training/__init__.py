"""The ranks and the agents that fork them.

Only this folder imports torch, and no other folder of the package imports this one.

agent/        the process on each node that has torch in memory and forks ranks
rank/         one rank in one launch; tasks/ has one file for each task
strategies/   one file for each way to parallelize; parallel/ has the parts they share
models/       one file for each model
compressors/  one file for each gradient compressor; transports has what they share
inputs/       one file for each source of batches
tuning/       kernels, compiled blocks, recomputation, 8-bit products
observe/      spans, profiles, bytes, memory and clocks of a rank
script/       a user's own script, observed without changing it
callbacks/    trainings of other frameworks that record themselves
work          FLOPs and saved tensors of a step, counted without data
"""
