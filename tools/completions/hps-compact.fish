# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_hps_compact_global_optspecs
    string join \n color= progress= q/quiet v/verbose h/help V/version
end

function __fish_hps_compact_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_hps_compact_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_hps_compact_using_subcommand
    set -l cmd (__fish_hps_compact_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c hps-compact -n "__fish_hps_compact_needs_command" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-compact -n "__fish_hps_compact_needs_command" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-compact -n "__fish_hps_compact_needs_command" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -s v -l verbose -d 'Print more of what was found'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -s V -l version -d 'Print version'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -f -a "plan" -d 'Show each parameter file, how much of it is live, and what rewriting it would give back'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -f -a "run" -d 'Rewrite files with many stale rows, a group at a time'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -f -a "gc" -d 'Drop old checkpoints, and the files that only they need'
complete -c hps-compact -n "__fish_hps_compact_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -l threshold -d 'Rewrite files of which at least this share is stale, from 0 to 1' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -l max-bytes -d 'Begin no group of files after so many bytes were read and written' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -l check -d 'Also read every file of the last checkpoint, and name what is damaged or can\'t be read'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -s v -l verbose -d 'Print more of what was found'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l threshold -d 'Rewrite files of which at least this share is stale, from 0 to 1' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l max-bytes -d 'Begin no group of files after so many bytes were read and written' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l io-limit -d 'Read and write at most so much per second together, as in 200MiB/s' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l keep-checkpoints -d 'First drop all checkpoints but the last N' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l dry-run -d 'Say what would be done; nothing is written'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l force -d 'Also where the store belongs to another user: new files will belong to you'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -s v -l verbose -d 'Print more of what was found'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l keep-checkpoints -d 'Drop all checkpoints but the last N' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l checkpoint -d 'Drop this checkpoint; may be given several times' -r
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l color -d 'When text has colours; auto: on a terminal, if neither NO_COLOR nor TERM=dumb is set' -r -f -a "auto\t'On a terminal that knows colours, unless NO_COLOR is set'
always\t'Also into files and pipes'
never\t'Nowhere'"
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l progress -d 'When progress is shown on stderr' -r -f -a "auto\t'A bar where stderr is a terminal, elsewhere a line every ten seconds'
always\t'The same, and at least a first and a last line where there is no bar'
lines\t'A line every ten seconds, also on a terminal'
never\t'Nothing'"
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l dry-run -d 'Say what would be done; nothing is written'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l force -d 'Also where the store belongs to another user: new files will belong to you'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -l json -d 'Print one JSON object, plain numbers'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -s q -l quiet -d 'Print nothing but errors: the exit code tells the rest'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -s v -l verbose -d 'Print more of what was found'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand gc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand help; and not __fish_seen_subcommand_from plan run gc help" -f -a "plan" -d 'Show each parameter file, how much of it is live, and what rewriting it would give back'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand help; and not __fish_seen_subcommand_from plan run gc help" -f -a "run" -d 'Rewrite files with many stale rows, a group at a time'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand help; and not __fish_seen_subcommand_from plan run gc help" -f -a "gc" -d 'Drop old checkpoints, and the files that only they need'
complete -c hps-compact -n "__fish_hps_compact_using_subcommand help; and not __fish_seen_subcommand_from plan run gc help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
