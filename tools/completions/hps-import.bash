_hps__import() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="hps__import"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        hps__import)
            opts="-q -v -h -V --format --table --variable --embedx-dim --accessor --embed-rule --embedx-rule --create --optimizer --dim --initialiser --seed --accumulator --step --weights-only --lr --adam-step --repair --non-finite --cache --threads --force --json --color --progress --quiet --verbose --help --version"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --format)
                    COMPREPLY=($(compgen -W "hugectr npy parquet deeprec paddle-text delta" -- "${cur}"))
                    return 0
                    ;;
                --table)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --variable)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --embedx-dim)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --accessor)
                    COMPREPLY=($(compgen -W "ctr-common sparse" -- "${cur}"))
                    return 0
                    ;;
                --embed-rule)
                    COMPREPLY=($(compgen -W "naive adagrad std-adagrad adam shared-adam" -- "${cur}"))
                    return 0
                    ;;
                --embedx-rule)
                    COMPREPLY=($(compgen -W "naive adagrad std-adagrad adam shared-adam" -- "${cur}"))
                    return 0
                    ;;
                --optimizer)
                    COMPREPLY=($(compgen -W "sgd momentum nesterov adagrad rowwise-adagrad adam ftrl" -- "${cur}"))
                    return 0
                    ;;
                --dim)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --initialiser)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --accumulator)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --step)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --lr)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --adam-step)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --non-finite)
                    COMPREPLY=($(compgen -W "reject skip apply" -- "${cur}"))
                    return 0
                    ;;
                --cache)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --color)
                    COMPREPLY=($(compgen -W "auto always never" -- "${cur}"))
                    return 0
                    ;;
                --progress)
                    COMPREPLY=($(compgen -W "auto always lines never" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _hps__import -o nosort -o bashdefault -o default hps-import
else
    complete -F _hps__import -o bashdefault -o default hps-import
fi
