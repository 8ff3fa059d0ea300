# bash completion for poolctl; written by poolctl help --completion bash from its table of verbs.
_poolctl() {
	local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" verb='' word
	local verbs='status top pages pins clients regions tenants objects adapters roles transfers events trace evict object drain limit reload check bench doctor dump upgrade version help'
	local options='--dir --pool --output --timeout --offline --quiet --no-color --help --version'
	COMPREPLY=()
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		if [[ -z $verb && " $verbs " == *" $word "* ]]; then verb=$word; fi
	done
	case $previous in
	--output | -o)
		COMPREPLY=($(compgen -W "table json" -- "$current"))
		return
		;;
	--state)
		COMPREPLY=($(compgen -W "FREE LEASED SHARED EVICTING MOVING QUARANTINED RESERVED RETIRED PINNED UNPINNED" -- "$current"))
		return
		;;
	--kind)
		COMPREPLY=($(compgen -W "pressure eviction reclaim tenant-limit agent-start session-start session-end leaked-pin reload front-restart damaged-session object-published object-deleted object-evicted role-granted role-freed takeover retired spill-error mover drain" -- "$current"))
		return
		;;
	--content)
		COMPREPLY=($(compgen -W "KV_CACHE LORA_WEIGHT TEMP_BUFFER ACTIVATION GRADIENT" -- "$current"))
		return
		;;
	--dir | -d)
		COMPREPLY=($(compgen -d -- "$current"))
		return
		;;
	esac
	case $verb in
	'')
		if [[ $current != -* ]]; then options=$verbs; fi
		;;
	top) options+=' --interval' ;;
	pages) options+=' --first --count --state --owner --each --map' ;;
	pins) options+=' --leaked' ;;
	events) options+=' --since --count --kind' ;;
	trace) options+=' --since --session --file' ;;
	evict) options+=' --session --content' ;;
	object) options+=' --object-version' ;;
	drain) options+=' --off --evict --no-wait' ;;
	limit) options+=' --session --limit --minimum' ;;
	check) options+=' --quiescent' ;;
	help)
		if [[ $current != -* ]]; then options=$verbs; fi
		;;
	dump)
		if [[ $current != -* ]]; then
			COMPREPLY=($(compgen -f -- "$current"))
			return
		fi
		;;
	esac
	if [[ $previous == --offline && $current != -* ]]; then
		COMPREPLY=($(compgen -f -W "$([[ -z $verb ]] && echo "$verbs")" -- "$current"))
		return
	fi
	COMPREPLY=($(compgen -W "$options" -- "$current"))
}
complete -F _poolctl poolctl
