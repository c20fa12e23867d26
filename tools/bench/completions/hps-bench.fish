# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_hps_bench_global_optspecs
    string join \n rows= dim= optimizer= batch= zipf= cache-mib= memory-mib= threads= seconds= warmup-seconds= rounds= dir= keep seed= depth= checkpoint-every= churn-seconds= shards= io-depth= data-dir= file-mib= space-bound= tiny json plot= trace= child= h/help V/version
end

function __fish_hps_bench_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_hps_bench_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_hps_bench_using_subcommand
    set -l cmd (__fish_hps_bench_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c hps-bench -n "__fish_hps_bench_needs_command" -l rows -d 'Rows of the store. [default: 8000000; tiny 20000]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l dim -d 'Weights of a row. [default: 64]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l optimizer -d 'Update rule; decides how wide a row is' -r -f -a "sgd\t''
momentum\t''
nesterov\t''
adagrad\t''
rowwise-adagrad\t''
adam\t''
ftrl\t''"
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l batch -d 'Samples of a batch, before duplicates are taken out. [default: 32768; tiny 1024]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l zipf -d 'Exponent of the key distribution of `train` and `compaction`; 0: uniform' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l cache-mib -d 'Cache of out-of-memory workloads in MiB; the index comes on top, and the ideal model gets the cache only' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l memory-mib -d 'All memory of out-of-memory workloads in MiB: the cache gets what the index and a constant of 40 MiB leave. [default: a quarter of the rows\' bytes, in steps of 64 MiB]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l threads -d 'Threads of the store and of the limits' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l seconds -d 'Seconds of each measured window. [default: 10; tiny 0.2]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l warmup-seconds -d 'Most seconds of a warm-up; it ends earlier when the hit rate has settled. [default: 180; tiny 2]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l rounds -d 'Rounds of limit and work. [default: 3; tiny 1]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l dir -d 'Directory for stores and probes, made if missing. [default: a temporary one, removed]' -r -F
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l seed -d 'Seed of keys and draws' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l depth -d 'Batches whose rows are fetched ahead, with tickets; 0: plain pulls' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l checkpoint-every -d 'Batches between checkpoints in `train`; 0: none' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l churn-seconds -d '`reopen`: seconds of training, with five checkpoints, before more rounds of opening' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l shards -d 'Shards of the store. [default: the store\'s own]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l io-depth -d 'Reads in flight per thread of the store. [default: the store\'s own]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l data-dir -d 'A directory on another device: each store gets a data directory in each that is named. May be given several times. [default: one, in the store\'s directory]' -r -F
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l file-mib -d 'Size of the store\'s parameter files in MiB. [default: the store\'s own]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l space-bound -d 'Space bound of the store: `current` stays under it times live. [default: the store\'s own]' -r
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l plot -d 'Draw hit rate, SSD bytes and stall per batch of the last `train` as SVG' -r -F
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l trace -d 'Record the keys of the batches of `train`, warm-up included, for `hps-bench replay`' -r -F
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l child -d 'Internal: open the store in this directory, change rows, and wait to be killed' -r -F
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l keep -d 'Leave the loaded store in --dir; a later run with the same rows uses it again'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l tiny -d 'Small enough for a test: the figures mean nothing'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -l json -d 'Print, as the last line, a JSON array with one object per workload'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -s V -l version -d 'Print version'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -a "replay" -d 'Replays keys through the store\'s cache and through others with as many rows, and as many bytes'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -a "hot-table" -d 'Hits of a store with 26 tables, of which another is hot from the middle on'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -a "etc" -d 'Rows of whole passes, read and written back: HugeCTR\'s test of its Embedding Training Cache'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -a "memory" -d 'What each byte of a store is for while it trains, and what the process really holds'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -a "paired" -d 'Compares two builds of hps-bench, run by turns: is the new one slower?'
complete -c hps-bench -n "__fish_hps_bench_needs_command" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l zipf -d 'Draw the trace instead, zipf with this exponent; 0: uniform' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l rows -d 'Rows that --zipf draws from' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l batches -d 'Batches that are drawn' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l batch -d 'Samples of a batch that is drawn, before duplicates are taken out' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l drift -d 'A tenth of the most frequent rows, as many as a fifth of all, change places with others each time so many batches are over. With --zipf' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l seed -d 'Seed of what is drawn' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l cache-mib -d 'Memory of the cache in MiB: rows and all that is kept about them' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l slots -d 'Memory of the cache in rows; not with --hot-table' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l row-bytes -d 'Bytes of a row, a multiple of 4: weights and optimizer state' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l beside -d 'Bytes beside a row that LFU, static and Belady pay at equal bytes' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l policies -d 'Policies beside ours. [default: all]' -r -f -a "belady\t'The row that is used again last leaves: knows the future'
static\t'The rows that the whole trace uses most, per byte'
lfu\t'Least frequently used, per byte; counts every row exactly and never forgets'
s3fifo\t'S3-FIFO'
lru\t'Least recently used'"
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l depth -d 'Batches fetched ahead, whose rows stay pinned; ours only' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l shards -d 'Shards; ours only. [default: the store\'s own]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l skip -d 'Batches behind the load that the second figures leave out. [default: half of them]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l hot-table -d 'Draw the trace of the workload `hot-table` instead: 26 tables, of which another is hot from half of the batches on. Its rows have their own sizes'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l load -d 'Load all rows first, in no order; the load\'s misses do not count. With --zipf'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -l json -d 'Print, as the last line, a JSON array with one object per policy, ours first'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand replay" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l batches -d 'Batches before the change, and as many after it. [default: 100; tiny 20]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l batch -d 'Samples of a batch over all tables, before duplicates are taken out. [default: 65536; tiny 2048]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l cache-mib -d 'Cache of the store in MiB. [default: a tenth of the rows\' bytes]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l shards -d 'Shards of the store. [default: the store\'s own]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l threads -d 'Threads of the store and of the simulation' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l tries -d 'Splits that are tried for each half, from the one on that exact LFUs name. [default: 12; tiny 3]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l dir -d 'Directory for the store, on the device in question. [default: a temporary one, removed]' -r -F
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l seed -d 'Seed of keys and draws' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l tiny -d 'Small enough for a test: the figures mean nothing'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -l json -d 'Print, as the last line, a JSON object'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand hot-table" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l scale -d 'The keys of the guide\'s passes, 24 to 28 million each, are divided by this. [default: 100; tiny 20000]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l dim -d 'Weights of a row; there is no optimizer state, as in the guide' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l zipf -d 'Exponent of the distribution of keys' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l keysets -d 'A folder with keyset files (*.keyset, i64) to take instead of drawn keys, in the order of their names' -r -F
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l cache-passes -d 'Memory for rows, in passes of the largest size: two blocks, one that comes in, and some room' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l ways -d 'Ways to keep rows. [default: all]' -r -f -a "staged\t'The whole table in memory'
cached\t'Two passes in memory'
bilevel\t'The store\'s own cache, with the same bytes as Cached'
ssd-only\t'No row in memory but those of the pass at hand'"
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l threads -d 'Threads of the store and of the limits' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l dir -d 'Directory for the stores, on the device in question. [default: a temporary one, removed]' -r -F
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l plot -d 'Draw bandwidths and hit rates, as the guide\'s figures 5 and 6: PREFIX-read.svg, PREFIX-write.svg' -r -F
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l seed -d 'Seed of the keys' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l tiny -d 'Small enough for a test: the figures mean nothing'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -l json -d 'Print, as the last line, a JSON object'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand etc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l rows -d 'Rows of the store. [default: 8000000; tiny 20000]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l dim -d 'Weights of a row; AdaGrad doubles them' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l batch -d 'Samples of a batch, before duplicates are taken out. [default: 32768; tiny 1024]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l zipf -d 'Exponent of the key distribution; 0: uniform' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l cache-mib -d 'Cache of the store in MiB. [default: a fifth of the rows\' bytes]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l seconds -d 'Seconds of training. [default: 60; tiny 0.5]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l checkpoint-every -d 'Batches between checkpoints; 0: none' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l threads -d 'Threads of the store' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l dir -d 'Directory for the store, made if missing. [default: a temporary one, removed]' -r -F
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l seed -d 'Seed of keys and draws' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l load-only -d 'Internal: load the store into --dir, leave it there, and end'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l tiny -d 'Small enough for a test: the figures mean nothing'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -l json -d 'Print, as the last line, a JSON object'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand memory" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l pairs -d 'Pairs that count; one more comes first. [default: 15; tiny 3]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l workloads -d 'What to compare, with commas between' -r -f -a "pull-hit\t'Pulls of resident rows'
push-hit\t'Pushes to resident rows'
train-memory\t'Pull, change and push, every row in memory'
pull-miss\t'Pulls of cold rows'
w2a\t'Training out of memory, zipf 0.99'
w2b\t'Training out of memory, zipf 1.2'
checkpoint\t'A checkpoint of all rows, trainer idle'
load\t'Every row once, with a closing checkpoint'"
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l rows -d 'Rows of each store. [default: 2000000; tiny 20000]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l seconds -d 'Seconds of each measured window. [default: 3; tiny 0.1]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l warmup-seconds -d 'Most seconds of a warm-up of training out of memory. [default: 20; tiny 0.5]' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l threads -d 'Threads of the store' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l dir -d 'Directory for the stores of both builds, on the device in question. [default: a temporary one, removed]' -r -F
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l seed -d 'Seed of keys and draws; whether it is odd decides who begins' -r
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l beside -d 'Run both builds at the same time, each on half of the processors with half of the threads; they change sides from pair to pair. For a machine whose speed changes within seconds; only for work in memory, since the device is one'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l tiny -d 'Small enough for a test: the figures mean nothing'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -l json -d 'Print, as the last line, a JSON array with one object per figure'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand paired" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand help; and not __fish_seen_subcommand_from replay hot-table etc memory paired help" -f -a "replay" -d 'Replays keys through the store\'s cache and through others with as many rows, and as many bytes'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand help; and not __fish_seen_subcommand_from replay hot-table etc memory paired help" -f -a "hot-table" -d 'Hits of a store with 26 tables, of which another is hot from the middle on'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand help; and not __fish_seen_subcommand_from replay hot-table etc memory paired help" -f -a "etc" -d 'Rows of whole passes, read and written back: HugeCTR\'s test of its Embedding Training Cache'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand help; and not __fish_seen_subcommand_from replay hot-table etc memory paired help" -f -a "memory" -d 'What each byte of a store is for while it trains, and what the process really holds'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand help; and not __fish_seen_subcommand_from replay hot-table etc memory paired help" -f -a "paired" -d 'Compares two builds of hps-bench, run by turns: is the new one slower?'
complete -c hps-bench -n "__fish_hps_bench_using_subcommand help; and not __fish_seen_subcommand_from replay hot-table etc memory paired help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
