complete -c hps-import -l format -d 'The format of the files' -r -f -a "hugectr\t'HugeCTR\'s sparse model folder: key, emb_vector, slot_id, optimizer state'
npy\t'NumPy arrays: keys.npy, weights.npy, and a file for each column of state and metadata'
parquet\t'Parquet files of keys and lists of weights, and columns of state and metadata (a build with --features parquet)'
deeprec\t'An EmbeddingVariable of DeepRec in a checkpoint of TensorFlow: keys, values, optimizer slots, freqs, versions'
paddle-text\t'The text of a sparse table of Paddle\'s parameter server'
delta\t'All tables, with all that hps keeps of them: whole, or what changed since a delta or checkpoint before'"
complete -c hps-import -l table -d 'The table' -r
complete -c hps-import -l variable -d 'deeprec: the name of the EmbeddingVariable; default: that of the table' -r
complete -c hps-import -l embedx-dim -d 'paddle-text: how many weights embedx_w has; the table has one more' -r
complete -c hps-import -l accessor -d 'paddle-text: the accessor of Paddle\'s table. Lines of others have other numbers in these places' -r -f -a "ctr-common\t'CtrCommonAccessor'
sparse\t'SparseAccessor, whose lines are the same'"
complete -c hps-import -l embed-rule -d 'paddle-text: the rule of embed_w; default: adagrad' -r -f -a "naive\t'SparseNaiveSGDRule, without state'
adagrad\t'SparseAdaGradSGDRule, one g2sum'
std-adagrad\t'StdAdaGradSGDRule, a g2sum for each weight'
adam\t'SparseAdamSGDRule'
shared-adam\t'SparseSharedAdamSGDRule, one gsum and one g2sum'"
complete -c hps-import -l embedx-rule -d 'paddle-text: the rule of embedx_w; default: adagrad' -r -f -a "naive\t'SparseNaiveSGDRule, without state'
adagrad\t'SparseAdaGradSGDRule, one g2sum'
std-adagrad\t'StdAdaGradSGDRule, a g2sum for each weight'
adam\t'SparseAdamSGDRule'
shared-adam\t'SparseSharedAdamSGDRule, one gsum and one g2sum'"
complete -c hps-import -l optimizer -d 'The optimizer of a new table; default: the one whose state files are there' -r -f -a "sgd\t'No state'
momentum\t'MomentumSGD of HugeCTR'
nesterov\t'Nesterov'
adagrad\t'AdaGrad, an accumulator for each weight'
rowwise-adagrad\t'AdaGrad with one accumulator a row'
adam\t'Adam with a step count for each row'
ftrl\t'FTRL-Proximal'"
complete -c hps-import -l dim -d 'The dim of a new table; default: that of the folder' -r
complete -c hps-import -l initialiser -d 'Weights of keys that a new table has no row of: zero, constant:VALUE, uniform:LOW:HIGH or normal:MEAN:DEVIATION; default: uniform:-0.01:0.01' -r
complete -c hps-import -l seed -d 'The seed of these weights; default: 0' -r
complete -c hps-import -l accumulator -d 'What the accumulator of AdaGrad, or n of FTRL, is in such rows; default: 0' -r
complete -c hps-import -l step -d 'The step of the checkpoint; default: the one after the last' -r
complete -c hps-import -l lr -d 'The learning rate of MomentumSGD or Nesterov, by which HugeCTR\'s momentum is scaled' -r
complete -c hps-import -l adam-step -d 'The step count that each row of Adam begins with: HugeCTR\'s iteration, DeepRec\'s global step' -r
complete -c hps-import -l non-finite -d 'What to do with rows that have a NaN or an infinity' -r -f -a "reject\t'Nothing is imported; the first one is named'
skip\t'They are left out, and counted'
apply\t'They are taken as they are, and counted'"
complete -c hps-import -l cache -d 'Memory of the store\'s cache' -r
complete -c hps-import -l threads -d 'Threads that read; default: the cores, at most 8' -r
complete -c hps-import -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-import -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-import -l create -d 'Make the store, or the table, where it is not there'
complete -c hps-import -l weights-only -d 'Keys and weights alone, whatever else is in the folder'
complete -c hps-import -l repair -d 'Of files of unequal length, as a crash of their writer leaves them, take the whole rows that all of them have'
complete -c hps-import -l force -d 'Also where the store belongs to another user: new files will belong to you'
complete -c hps-import -l json -d 'Print one JSON object, plain numbers'
complete -c hps-import -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-import -s v -l verbose -d 'Print more of what was found'
complete -c hps-import -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-import -s V -l version -d 'Print version'
