"""The sentences about how a run, or a rank of it, ended, in English and Chinese."""

from __future__ import annotations

OF_ENDINGS: dict[str, tuple[str, str]] = {
    "killed-silently": (
        "SIGKILL ended it, and nothing in the log says why. No evidence that memory ran out was found:"
        " it is the most frequent reason.",
        "进程被 SIGKILL 结束，日志没有说明原因。没有找到内存耗尽的证据，但这是最常见的原因。",
    ),
    "asked-to-end": (
        "A signal asked the run to end, as its log says: of a scheduler that needs the node, at a time limit,"
        " or of somebody.",
        "日志写明是信号要求训练结束：可能来自调度器的抢占或时间限制，也可能是人为。",
    ),
    "asked-to-end-line": (
        "The log tells of the signal at {at}: {line}",
        "见 {at}：{line}",
    ),
    "aborted-at-exit": (
        "The run had reached its end; this happened while its processes exited. Check that the last"
        " checkpoint is whole.",
        "训练已经完成，这是进程退出时发生的。请确认最后一个 checkpoint 完整。",
    ),
    "left-early": (
        "{who} left without an error at step {step}; the others waited for it.",
        "{who} 在第 {step} 步退出，没有报错，其余 rank 一直在等它。",
    ),
    "left-early-somewhere": (
        "{who} left without an error; the others waited for it.",
        "{who} 已退出，没有报错，其余 rank 一直在等它。",
    ),
    "left-early-no-step": (
        "{who} left without an error before any step was seen; the others waited for it.",
        "{who} 在看到任何 step 之前就退出，没有报错，其余 rank 一直在等它。",
    ),
    "left-behind": (
        "{who} left without an error at step {step}; the others made {more} more steps without it. What it"
        " would have learnt from its share of the data is missing.",
        "{who} 在第 {step} 步退出，没有报错；其余 rank 在没有它的情况下又走了 {more} 步，"
        "它那部分数据没有参与训练。",
    ),
    "rank-gone": (
        "The process of rank {ranks} is gone; the others go on without it.",
        "rank {ranks} 的进程已不在，其余 rank 仍在运行。",
    ),
    "ranks-gone": (
        "The processes of ranks {ranks} are gone; the others go on without them.",
        "rank {ranks} 的进程都已不在，其余 rank 仍在运行。",
    ),
    "gone-with-code": ("Exit code {code}.", "退出码为 {code}。"),
    "gone-by-signal": ("Ended by {signal}.", "被 {signal} 终止。"),
    "gone-counted": (
        "The kernel's count of out-of-memory kills has risen since the command started.",
        "命令开始运行后，内核的 OOM kill 计数增加了。",
    ),
    "rank-gone-early": (
        "Rank {ranks} ended without an error at step {step} of {total}; the others go on without it.",
        "rank {ranks} 在第 {step} 步（共 {total} 步）退出，没有报错；其余 rank 仍在运行。",
    ),
    "ranks-gone-early": (
        "Ranks {ranks} ended without an error at step {step} of {total}; the others go on without them.",
        "rank {ranks} 都在第 {step} 步（共 {total} 步）退出，没有报错；其余 rank 仍在运行。",
    ),
    "rank-gone-behind": (
        "Rank {ranks} ended without an error at step {step}; the others go on without it.",
        "rank {ranks} 在第 {step} 步退出，没有报错；其余 rank 仍在运行。",
    ),
    "ranks-gone-behind": (
        "Ranks {ranks} ended without an error at step {step}; the others go on without them.",
        "rank {ranks} 都在第 {step} 步退出，没有报错；其余 rank 仍在运行。",
    ),
    "stall-was-open": (
        "A stall was raised at {time} while the run was watched, and it was not over at the end: no step for"
        " {silence} at the last look.",
        "监视期间于 {time} 报出停滞，直到最后也没有恢复：最后一次查看时已有 {silence} 没有新的 step。",
    ),
    "finding-was-open": (
        "Raised at {time} while the run was watched, and not over at the end: {what}",
        "监视期间于 {time} 报出，直到最后也没有解除：{what}",
    ),
    "still-watched": (
        "The run is still watched: this is what its output says so far.",
        "该任务仍在监视中：以上只是到目前为止的输出。",
    ),
    "agent-gone": (
        "The agent that watched the run was last heard of at {time}, and saw no end of it: it was killed, or"
        " its host is down. These copies end there; the run may have gone on (`stallwatch tail` on its own"
        " log file watches it again).",
        "监视该任务的 agent 最后一次有消息是在 {time}，没有看到任务结束：它被杀掉了，或者主机已停机。"
        "输出副本到那时为止；任务本身可能仍在继续（对它自己的日志文件运行 `stallwatch tail` 可重新监视）。",
    ),
    "ending-told": (
        "The copies of its output, and the record of its state, break off before its end, as where a disk is"
        " full. How it ended stands in what was told of it at {time}: {what}",
        "输出副本和状态记录在结束之前就中断了（例如磁盘已满）。任务如何结束，见 {time} 的通知：{what}",
    ),
    "kept-diagnosis": (
        "The copies of its output hold {left} of the {seen} lines that were seen, and no cause: this is the"
        " diagnosis that was kept when it ended.",
        "输出副本中只剩 {left} 行（当时读到 {seen} 行），其中看不出原因：这里是结束时保存的诊断。",
    ),
    "stopped-late": (
        "The run was stopped by hand, {silence} after its last step; a step had taken {usual}: it may have"
        " been standing.",
        "训练是被人为中断的，此时距最后一步已有 {silence}，而此前每步约 {usual}：它可能已经停住。",
    ),
    "left-somebody": ("one of the processes", "其中一个进程"),
    "killed-counted": (
        "SIGKILL, and the kernel's count of out-of-memory kills rose while the command ran.",
        "进程被 SIGKILL 结束，命令运行期间内核的 OOM kill 计数增加了。",
    ),
    "killed-near-limit": (
        "SIGKILL, and its processes held up to {held} of the {limit} GiB that they may use.",
        "进程被 SIGKILL 结束，此前各进程合计占用内存最高 {held} GiB，可用上限为 {limit} GiB。",
    ),
    "killed-from-outside": (
        "Not the kernel for memory: its count of out-of-memory kills did not rise, and the processes held up"
        " to {held} of the {limit} GiB that they may use. Somebody or something sent the signal.",
        "不是内核因内存不足所杀：OOM kill 计数没有增加，各进程合计占用内存最高 {held} GiB，可用上限为"
        " {limit} GiB。信号是别的程序或人发的。",
    ),
    "killed-afterwards": (
        "SIGKILL came after {rule}: it is how the run was ended, not why.",
        "SIGKILL 在 {rule} 之后：它是结束方式，不是原因。",
    ),
    "ended-by-signal": (
        "The signal is how the command ended; nothing in the log says more.",
        "命令以该信号结束，日志没有更多说明。",
    ),
    "told-to-stop": (
        "A signal from outside asked it to end, and nothing in the log says why: look for who sent it.",
        "外部信号要求它结束，日志没有说明原因：请查是谁发的。",
    ),
    "told-to-stop-beside": (
        "A signal from outside asked it to end. Before that stands an exception after which training went on:"
        " {exception}. See whether it is why somebody ended the run.",
        "外部信号要求它结束。此前日志中有一个异常，之后训练仍在继续：{exception}。请确认它是否就是结束训练的原因。",
    ),
    "ended-silently": (
        "Rank {rank} ended first, with exit status {code}, and nothing that was read is an error of it: read"
        " the end of its own log, then look for sys.exit, raise SystemExit and os._exit in the script and its"
        " libraries.",
        "rank {rank} 最先退出，退出码 {code}，已读到的内容里没有它的错误：请先看它自己日志的结尾，"
        "再在脚本及其依赖库中查找 sys.exit、raise SystemExit 和 os._exit。",
    ),
    "ended-by-itself": (
        "No signal ended it and nothing was raised: look at its last lines, and for sys.exit,"
        " raise SystemExit and os._exit in the script and its libraries.",
        "它不是被信号结束的，也没有抛出异常：请看它最后几行输出，并在脚本及其依赖库中查找"
        " sys.exit、raise SystemExit 和 os._exit。",
    ),
    "command-not-run": (
        "A shell exits with 127 where it does not find a command, with 126 where it may not run it: look at"
        " the last lines for its name, then at its spelling, PATH, the activated environment and its"
        " permissions.",
        "shell 找不到命令时以 127 退出，找到但无法执行时以 126 退出：请在最后几行输出里找到命令名，"
        "再检查拼写、PATH、已激活的环境和执行权限。",
    ),
    "caught-at-end": (
        "The training had come to its end all the same.",
        "训练仍然进行到了最后。",
    ),
    "maybe-caught": (
        "A program that catches it goes on: nothing shows that it ended the run.",
        "捕获了它的程序会继续运行：没有迹象表明训练因此结束。",
    ),
    "slower-since": (
        " It began at step {step}.",
        "从第 {step} 步开始。",
    ),
    "flight-apart": (
        "Look there first, at what code it ran: {own}, while {others}.",
        "请先查那里执行了哪段代码：{own}，而 {others}。",
    ),
    "oom-killed": (
        "The container used more host memory than its limit (OOMKilled)",
        "容器的主机内存超过上限，被内核杀死（OOMKilled）",
    ),
    "oom-killed-limit": (
        "The container used more host memory than its limit of {limit} (OOMKilled)",
        "容器的主机内存超过上限 {limit}，被内核杀死（OOMKilled）",
    ),
    "oom-killed-first": (
        "Use less host memory, or raise `resources.limits.memory`: `low_cpu_mem_usage=True` and safetensors"
        " while loading, fewer data-loader workers, no offload to the CPU; /dev/shm and files in a"
        " memory-backed emptyDir count, too. GPU memory has nothing to do with it (see host-oom-sigkill).",
        "减少主机内存用量，或调大 `resources.limits.memory`：加载时用 `low_cpu_mem_usage=True` 和"
        " safetensors，减少 data loader worker，不要 offload 到 CPU；"
        "/dev/shm 和内存型 emptyDir 里的文件也算在内。与 GPU 显存无关（见 host-oom-sigkill）。",
    ),
    "ended-from-outside": (
        "Something outside ended the job: its launcher was sent SIGTERM",
        "任务被外部结束：启动器收到了 SIGTERM",
    ),
    "ended-from-outside-ask": (
        "Nothing failed before it in what was read: an eviction, a preemption, a time limit, `scancel` or a"
        " person ended the job. Ask who: `kubectl describe pod POD` and `kubectl get events`, `sacct -j JOB"
        " -o State,ExitCode,Reason`, `dmesg -T` and `journalctl` on the node.",
        "已读到的内容里此前没有任何失败：是驱逐、抢占、时间限制、`scancel` 或人为结束了任务。"
        "查是谁：`kubectl describe pod POD` 和 `kubectl get events`，"
        "`sacct -j JOB -o State,ExitCode,Reason`，节点上的 `dmesg -T` 和 `journalctl`。",
    ),
    "crashed-at": (
        "The log shows where it crashed: {frame}, innermost {inner}. Look there first, at what is compiled"
        " behind it, its version and its arguments.",
        "日志已显示崩溃位置：{frame}（最内层 {inner}）。请先查那里所调用的编译扩展、它的版本和传入的参数。",
    ),
    "restarted-once": (
        "torchrun started the workers again once ({places}); the steps that followed are all ranks'.",
        "torchrun 重启过一次 worker（{places}），之后的步数属于所有 rank。",
    ),
    "restarted": (
        "torchrun started the workers again {times} times, the last time here: {places}; the steps that"
        " followed are all ranks'.",
        "torchrun 重启过 {times} 次 worker，最近一次在 {places}，之后的步数属于所有 rank。",
    ),
    "restarted-why": (
        " Before that: {why}",
        "此前的报错：{why}",
    ),
}
