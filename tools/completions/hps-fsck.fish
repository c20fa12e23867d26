complete -c hps-fsck -l checkpoint -d 'Count the rows of this retained checkpoint (or repair it) instead of the last one' -r
complete -c hps-fsck -l diff -d 'Compare the rows of the checkpoint with those of the last checkpoint of another store' -r -f -a "(__fish_complete_directories)"
complete -c hps-fsck -l without-directory -d 'Repair without data directory N, counted from 0, which is lost: its rows are given up; may be given again' -r
complete -c hps-fsck -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-fsck -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-fsck -l quick -d 'Only what can be checked without reading rows and keys: identity, manifest, lengths, headers, footers'
complete -c hps-fsck -l full -d 'Every byte of every file (the default)'
complete -c hps-fsck -l digest -d 'Print a digest of all rows of the checkpoint: equal for equal rows, whatever the files'
complete -c hps-fsck -l repair -d 'Save what verifies, list the keys that are lost, and put the repaired store in DIR\'s place'
complete -c hps-fsck -l without-meta -d 'If the checkpoint\'s meta file is damaged, give the repaired store an empty one'
complete -c hps-fsck -l force -d 'Repair a store that belongs to another user: the new files will belong to you'
complete -c hps-fsck -l norms -d 'Print how many rows have a norm of which size'
complete -c hps-fsck -l json -d 'Print one JSON object, plain numbers'
complete -c hps-fsck -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-fsck -s v -l verbose -d 'Print more of what was found'
complete -c hps-fsck -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-fsck -s V -l version -d 'Print version'
