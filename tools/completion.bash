# Completion in bash: the program prints its options, their choices and its commands for
# --help=words. To use it in the tree: PATH=$PWD/build/bin:$PATH; . tools/completion.bash
_train_gpt() {
    local name choices names="" command=() cur=${COMP_WORDS[COMP_CWORD]} \
        prev=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    if [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]]; then command=("${COMP_WORDS[1]}"); fi
    while read -r name choices; do
        if [[ $name == "$prev" && -n $choices ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$cur")
            return
        fi
        if [[ $name != -* || $cur == -* ]]; then names+=" $name"; fi
    done < <("$1" "${command[@]}" --help=words 2>/dev/null)
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
}
complete -o default -F _train_gpt train_gpt gpt-convert gpt-corpus gpt-inspect gpt-ledger \
    gpt-report gpt-timeline gpt-tokenize gpt-whatif
