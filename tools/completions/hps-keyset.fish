# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_hps_keyset_global_optspecs
    string join \n color= progress= q/quiet v/verbose h/help V/version
end

function __fish_hps_keyset_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_hps_keyset_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_hps_keyset_using_subcommand
    set -l cmd (__fish_hps_keyset_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -s V -l version -d 'Print version'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "extract" -d 'Make a keyset file from data'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "split" -d 'Cut a data set into passes, and make the keyset of each: PREFIX.0.keyset, PREFIX.1.keyset, ...'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "stat" -d 'Show what is in keyset files: keys, order, and the memory that their rows take'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "merge" -d 'Write the keys that any of the files has'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "intersect" -d 'Write the keys that all files have'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "diff" -d 'Say how two keysets differ; with -o also write the keys that only the first one has'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "verify" -d 'Check that files are sorted, unique and of the type that they are said to be'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "missing" -d 'Say which keys of a keyset a store does not have'
complete -c hps-keyset -n "__fish_hps_keyset_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l from -d 'What kind of files the inputs are' -r -f -a "criteo-tsv\t'Criteo\'s click logs: 40 columns between tabs, or 39 without label; the last 26 are hex values'
npy\t'NumPy\'s array of one or two dimensions, of 32-bit or 64-bit integers; columns are fields'
norm\t'HugeCTR\'s Norm, with or without sums; slots are fields. Needs --dtype or --input-dtype'
raw\t'HugeCTR\'s Raw; slots are fields. Needs --labels, --dense and --slots'
keys\t'Keyset files. Needs --dtype or --input-dtype'
parquet\t'Parquet, where this build has it: integers, or lists of them. Fields are the columns that `cats` of _metadata.json names, or --columns'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l dtype -d 'The type of the keys that are written (i64 if left out), and of those that are read (norm, keys)' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l input-dtype -d 'The type of the keys that are read, where it is another one (norm, keys)' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l key -d 'How a key is made of a value; raw, if left out, for --from keys' -r -f -a "field\t'The field\'s number, from --first-field, in the upper 32 bits, the value in the lower ones'
offset\t'The value plus the sizes of the slots before (HugeCTR\'s slot_size_array): needs --slot-sizes'
raw\t'The value itself'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l first-field -d 'The number that the first field has in a key, for --key field; 1 for the data of hps\'s example ctr' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l slot-sizes -d 'How many values each slot has, for --key offset' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l labels -d 'Labels of a sample, for --from raw' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l dense -d 'Dense values of a sample, for --from raw' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l slots -d 'Slots of a sample, for --from raw' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l columns -d 'The columns that are fields, in their order, for --from parquet; without, those of _metadata.json beside each file' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l memory -d 'All buffers of all threads together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l threads -d 'Threads; as many as there are processors, if left out' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -s o -l output -d 'The file to be written' -r -F
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l file-list -d 'Each INPUT is a file list of HugeCTR\'s: their number, then a path on each line'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l per-table -d 'Write a file for each field: OUT.0.keyset, OUT.1.keyset, ...'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand extract" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l from -d 'What kind of files the inputs are' -r -f -a "criteo-tsv\t'Criteo\'s click logs: 40 columns between tabs, or 39 without label; the last 26 are hex values'
npy\t'NumPy\'s array of one or two dimensions, of 32-bit or 64-bit integers; columns are fields'
norm\t'HugeCTR\'s Norm, with or without sums; slots are fields. Needs --dtype or --input-dtype'
raw\t'HugeCTR\'s Raw; slots are fields. Needs --labels, --dense and --slots'
keys\t'Keyset files. Needs --dtype or --input-dtype'
parquet\t'Parquet, where this build has it: integers, or lists of them. Fields are the columns that `cats` of _metadata.json names, or --columns'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l dtype -d 'The type of the keys that are written (i64 if left out), and of those that are read (norm, keys)' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l input-dtype -d 'The type of the keys that are read, where it is another one (norm, keys)' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l key -d 'How a key is made of a value; raw, if left out, for --from keys' -r -f -a "field\t'The field\'s number, from --first-field, in the upper 32 bits, the value in the lower ones'
offset\t'The value plus the sizes of the slots before (HugeCTR\'s slot_size_array): needs --slot-sizes'
raw\t'The value itself'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l first-field -d 'The number that the first field has in a key, for --key field; 1 for the data of hps\'s example ctr' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l slot-sizes -d 'How many values each slot has, for --key offset' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l labels -d 'Labels of a sample, for --from raw' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l dense -d 'Dense values of a sample, for --from raw' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l slots -d 'Slots of a sample, for --from raw' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l columns -d 'The columns that are fields, in their order, for --from parquet; without, those of _metadata.json beside each file' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l memory -d 'All buffers together; by --hbm-gib the different keys of a pass must fit, with room to grow' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l rows -d 'Records of a pass' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l hbm-gib -d 'GiB that the rows of a pass may take; needs --dim and --optimizer' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l dim -d 'Weights of a row' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l optimizer -d 'What a row has beside its weights' -r -f -a "adam\t'Weights and two moments: 3 values for each weight'
adagrad\t'Weights and a sum of squares: 2'
momentum\t'Weights and a momentum: 2'
nesterov\t'Weights and a momentum: 2'
sgd\t'Weights alone: 1'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -s o -l output -d 'What the names of the files begin with' -r -F
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l file-list -d 'Each INPUT is a file list of HugeCTR\'s: their number, then a path on each line'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l data -d 'Also write the records of each pass, PREFIX.0.tsv and so on, and their list, PREFIX.txt'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand split" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l dtype -d 'The type of the keys; if left out, i64 unless the bytes contradict that' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l dim -d 'Also say how many GiB the rows take, with so many weights each, for each optimizer' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l memory -d 'All buffers of all threads together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l threads -d 'Threads; as many as there are processors, if left out' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l estimate -d 'Estimate how many different keys there are (HyperLogLog, error 0.4 %), in one pass, unsorted'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand stat" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -l dtype -d 'The type of all keys; if left out, i64 unless the bytes contradict that' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -l memory -d 'All buffers of all threads together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -l threads -d 'Threads; as many as there are processors, if left out' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -s o -l output -d 'The file to be written' -r -F
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand merge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -l dtype -d 'The type of all keys; if left out, i64 unless the bytes contradict that' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -l memory -d 'All buffers of all threads together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -l threads -d 'Threads; as many as there are processors, if left out' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -s o -l output -d 'The file to be written' -r -F
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand intersect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -l dtype -d 'The type of all keys; if left out, i64 unless the bytes contradict that' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -l memory -d 'All buffers of all threads together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -l threads -d 'Threads; as many as there are processors, if left out' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -s o -l output -d 'Write the keys of FIRST that SECOND does not have' -r -F
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -l dtype -d 'The type that the keys should have; i64 if left out' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -l memory -d 'All buffers together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l table -d 'The table; may be left out if there is only one' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l dtype -d 'The type of the keys; if left out, i64 unless the bytes contradict that' -r -f -a "i64\t'8 bytes, the bits of a u64 (HugeCTR: long long, i64_input_key=True)'
u32\t'4 bytes (HugeCTR: unsigned int)'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l memory -d 'All buffers of all threads together' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l threads -d 'Threads; as many as there are processors, if left out' -r
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -s o -l output -d 'Write the keys that are missing' -r -F
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -s v -l verbose -d 'Print more of what was found'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand missing" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "extract" -d 'Make a keyset file from data'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "split" -d 'Cut a data set into passes, and make the keyset of each: PREFIX.0.keyset, PREFIX.1.keyset, ...'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "stat" -d 'Show what is in keyset files: keys, order, and the memory that their rows take'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "merge" -d 'Write the keys that any of the files has'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "intersect" -d 'Write the keys that all files have'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "diff" -d 'Say how two keysets differ; with -o also write the keys that only the first one has'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "verify" -d 'Check that files are sorted, unique and of the type that they are said to be'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "missing" -d 'Say which keys of a keyset a store does not have'
complete -c hps-keyset -n "__fish_hps_keyset_using_subcommand help; and not __fish_seen_subcommand_from extract split stat merge intersect diff verify missing help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
