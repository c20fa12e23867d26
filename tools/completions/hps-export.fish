complete -c hps-export -l format -d 'The format of the files' -r -f -a "hugectr\t'HugeCTR\'s sparse model folder: key, emb_vector, slot_id, optimizer state'
npy\t'NumPy arrays: keys.npy, weights.npy, and a file for each column of state and metadata'
parquet\t'Parquet files of keys and lists of weights, and columns of state and metadata (a build with --features parquet)'
deeprec\t'An EmbeddingVariable of DeepRec in a checkpoint of TensorFlow: keys, values, optimizer slots, freqs, versions'
paddle-text\t'The text of a sparse table of Paddle\'s parameter server'
delta\t'All tables, with all that hps keeps of them: whole, or what changed since a delta or checkpoint before'"
complete -c hps-export -l table -d 'The table, by the name that it had at the checkpoint' -r
complete -c hps-export -l checkpoint -d 'This retained checkpoint instead of the last one' -r
complete -c hps-export -l since -d 'Only what changed since this checkpoint, which is retained, or a cursor\'s. Removed keys are in a file of their own, `removed` (npy: removed.npy; parquet: removed.parquet)' -r
complete -c hps-export -l after -d 'delta: what changed since the delta in this folder; with neither --after nor --since it has everything' -r -f -a "(__fish_complete_directories)"
complete -c hps-export -l lr -d 'The learning rate of MomentumSGD or Nesterov, by which HugeCTR\'s momentum is scaled' -r
complete -c hps-export -l variable -d 'deeprec: the name of the EmbeddingVariable; default: that of the table' -r
complete -c hps-export -l shards -d 'paddle-text: the shard_num of Paddle\'s table; default: 1000, as there' -r
complete -c hps-export -l accessor -d 'paddle-text: the accessor of Paddle\'s table. Lines of others have other numbers in these places' -r -f -a "ctr-common\t'CtrCommonAccessor'
sparse\t'SparseAccessor, whose lines are the same'"
complete -c hps-export -l embed-rule -d 'paddle-text: the rule of embed_w; default: adagrad' -r -f -a "naive\t'SparseNaiveSGDRule, without state'
adagrad\t'SparseAdaGradSGDRule, one g2sum'
std-adagrad\t'StdAdaGradSGDRule, a g2sum for each weight'
adam\t'SparseAdamSGDRule'
shared-adam\t'SparseSharedAdamSGDRule, one gsum and one g2sum'"
complete -c hps-export -l embedx-rule -d 'paddle-text: the rule of embedx_w; default: adagrad' -r -f -a "naive\t'SparseNaiveSGDRule, without state'
adagrad\t'SparseAdaGradSGDRule, one g2sum'
std-adagrad\t'StdAdaGradSGDRule, a g2sum for each weight'
adam\t'SparseAdamSGDRule'
shared-adam\t'SparseSharedAdamSGDRule, one gsum and one g2sum'"
complete -c hps-export -l slot -d 'The slot of all keys' -r
complete -c hps-export -l compression -d 'parquet: how columns are compressed; default: none, as trained weights hardly get smaller' -r -f -a "none\t'Not at all'
snappy\t'Fast'
zstd\t'Smaller'"
complete -c hps-export -l threads -d 'Threads that read and write; default: the cores, as far as --memory reaches' -r
complete -c hps-export -l memory -d 'Memory for what is read and written, 24 MiB a thread; parquet: from 36 MiB a thread, with row groups of 8 MiB, to 92 MiB, with those of 64 MiB; paddle-text: 33 MiB a thread, 35 with 10 000 shards' -r
complete -c hps-export -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-export -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-export -l weights-only -d 'Keys and weights alone: what HugeCTR needs to serve'
complete -c hps-export -l localized -d 'Write slot_id, which localized embeddings need: the upper half of each key, or what --slot says'
complete -c hps-export -l json -d 'Print one JSON object, plain numbers'
complete -c hps-export -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-export -s v -l verbose -d 'Print more of what was found'
complete -c hps-export -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-export -s V -l version -d 'Print version'
