"""The sentences that a diagnosis itself says, in English and Chinese."""

from __future__ import annotations

from stallwatch_rules.text.endingsentences import OF_ENDINGS
from stallwatch_rules.text.losssentences import OF_LOSSES
from stallwatch_rules.text.unknownsentences import OF_UNKNOWN

SENTENCES: dict[str, tuple[str, str]] = {
    "advancing": (
        "Steps went on: {steps} followed.",
        "训练仍在推进：之后又完成了 {steps} 步。",
    ),
    "cost": (
        " A step with it took {with_match}, one without {without}: about {extra} each (medians of {n_with}"
        " and {n_without}).",
        "出现它的步用时 {with_match}，没有它的步 {without}，每次约多 {extra}"
        "（{n_with} 步与 {n_without} 步的中位数）。",
    ),
    "no-cost": (
        " It cost no measurable time: {with_match} a step with it, {without} without (medians of {n_with}"
        " and {n_without}).",
        "没有可测量的时间损失：有它的步 {with_match}，没有的 {without}"
        "（{n_with} 步与 {n_without} 步的中位数）。",
    ),
    "slower-with": (
        "Steps became slower as it came more often: {before} at first, {now} now.",
        "它出现得越多，每步越慢：起初 {before}，现在 {now}。",
    ),
    "stands": (
        "No step for {silence}; this run's threshold is {threshold}.",
        "已有 {silence} 没有新的 step，本次训练的阈值为 {threshold}。",
    ),
    "stands-by-timeout": (
        "No step followed until a timeout ended the run.",
        "之后再没有新的 step，直到超时结束训练。",
    ),
    "stands-by-watch": (
        "No step follows any more.",
        "之后再没有新的 step。",
    ),
    "last-came-then": (
        " The messages went on up to that point.",
        "这些消息一直出现到那时。",
    ),
    "came-more-often": (
        " They became more: {before} in ten steps at first, {now} at the end.",
        "并且越来越多：起初每十步 {before} 条，最后每十步 {now} 条。",
    ),
    "rare-before-stall": (
        "The run stands, but these messages came rarely, and steps followed each: they are hardly why.",
        "训练停住了，但这些消息很少出现，且之后都有新的 step：多半不是原因。",
    ),
    "trace-cache-elsewhere": (
        "These messages had not become more, and the rank that is waited for is elsewhere: not why it hangs.",
        "这些消息并未变多，且其他 rank 在等的那个 rank 停在别处：它们不是停住的原因。",
    ),
    "long-before-stall": (
        "The run stands, but {steps} steps went well after the last of these messages.",
        "训练停住了，但最后一条消息之后还正常完成了 {steps} 步。",
    ),
    "no-steps": (
        "This text shows too few steps to tell whether it matters: it is harmless as long as steps go on.",
        "文本里的 step 太少，无法判断是否有影响：只要 step 继续推进就无害。",
    ),
    "scale-at-minimum": (
        "The loss scale reached its minimum: fp16 cannot hold this model's numbers.",
        "loss scale 已降到最小值：fp16 的数值范围不够用。",
    ),
    "overflow-in-a-row": (
        "Every one of the last {row} steps overflowed and was skipped.",
        "最后 {row} 步全部溢出并被跳过。",
    ),
    "overflow-mostly": (
        "{share} of the steps overflowed and were skipped.",
        "{share} 的 step 溢出并被跳过。",
    ),
    "overflow-often": (
        "{share} of the steps overflowed and were skipped; training goes on with the others.",
        "{share} 的 step 溢出并被跳过，其余 step 仍在训练。",
    ),
    "overflow-rare": (
        "{count} overflows, and good steps after them: dynamic loss scaling found its scale.",
        "共 {count} 次溢出，之后 step 正常：动态 loss scale 已找到合适的值。",
    ),
    "overflow-rare-one": (
        "One overflow, and good steps after it: dynamic loss scaling found its scale.",
        "只有一次溢出，之后 step 正常：动态 loss scale 已找到合适的值。",
    ),
    "overflow-then-nan": (
        "{count} overflows, and no good step after them: loss or gradient norm is NaN from then on.",
        "共 {count} 次溢出，之后没有正常的 step：loss 或梯度范数从此是 NaN。",
    ),
    "overflow-then-nan-one": (
        "One overflow, and no good step after it: loss or gradient norm is NaN from then on.",
        "只有一次溢出，之后没有正常的 step：loss 或梯度范数从此是 NaN。",
    ),
    "overflow-start-one": (
        "One overflow at the start: this is how dynamic loss scaling finds its scale.",
        "开头有一次溢出：动态 loss scale 就是这样找到合适的值的。",
    ),
    "overflow-start": (
        "{count} overflows at the start: this is how dynamic loss scaling finds its scale.",
        "开头有 {count} 次溢出：动态 loss scale 就是这样找到合适的值的。",
    ),
    "silent": (
        "No step for {silence}; this run's threshold is {threshold}. Nothing in the log says why.",
        "已有 {silence} 没有新的 step，本次训练的阈值为 {threshold}。日志没有说明原因。",
    ),
    "silent-beside": (
        "No step for {silence}; this run's threshold is {threshold}. An exception shortly before the stall"
        " did not end the run immediately: {exception}. Check whether it caused the stall.",
        "已有 {silence} 没有新的 step，本次训练的阈值为 {threshold}。停滞前不久出现过一个"
        "没有立即终止训练的异常：{exception}。请确认它是否就是原因。",
    ),
    "silent-then-ended": (
        "No step for {silence}; this run's threshold is {threshold}. Nothing in the log says why; then it"
        " was ended from outside.",
        "已有 {silence} 没有新的 step，本次训练的阈值为 {threshold}。日志没有说明原因；之后训练被外部结束。",
    ),
    "ended-a-stall": (
        "It ended a run that had stood before: the end of the stall, not its cause.",
        "结束的是一个早已停住的训练：这是停滞的收尾，不是原因。",
    ),
    "silent-by-watch": (
        "No step for longer than this run's rhythm allows. Nothing in the log says why.",
        "没有新的 step 的时间已超出本次训练的正常节奏。日志没有说明原因。",
    ),
    "silent-placed": (
        "No step for longer than this run's rhythm allows.",
        "没有新的 step 的时间已超出本次训练的正常节奏。",
    ),
    "nothing-says-why": (
        " Nothing in the log says why.",
        "日志没有说明原因。",
    ),
    "look-there": (
        "Look there first: {told}",
        "请先查这里：{told}",
    ),
    "alone-why": (
        "The one rank here is in no collective, so it does not wait for another rank: it still is in the call"
        " that is named above. That call waits for something outside (a service, a file system, a queue, a"
        " lock), works much longer than a step does, or never ends.",
        "本机唯一的 rank 不在集合通信中，所以不是在等别的 rank：它仍停在上面指出的调用里。"
        "该调用在等外部的东西（服务、文件系统、队列、锁），或比一步慢得多，或永远不会结束。",
    ),
    "single-why": (
        "The run is a single process here, and nothing tells of others that it could wait for. It still is"
        " in a call that waits for something outside (a service, a file system, a queue, a lock), works much"
        " longer than a step does, or never ends.",
        "本任务在这里只有一个进程，也没有其他 rank 的迹象。它仍停在某个调用里：该调用在等外部的东西"
        "（服务、文件系统、队列、锁），或比一步慢得多，或永远不会结束。",
    ),
    "single-fix": (
        "See where it stands: `py-spy dump --pid PID`.",
        "看它停在哪里：`py-spy dump --pid PID`。",
    ),
    "all-stacks": (
        "All stacks are in {file} in the run's folder.",
        "全部堆栈在 run 文件夹的 {file} 中。",
    ),
    "joining-why": (
        "Every rank that could be asked waits for others to join the process group: some rank never started,"
        " or cannot reach the address at which all meet.",
        "能问到的 rank 都在等其他 rank 加入进程组：有 rank 没有启动，或连不上大家会合的地址。",
    ),
    "joining-fix": (
        "Is the same command up on every node, with the same number of nodes and processes (WORLD_SIZE), the"
        " same MASTER_ADDR and MASTER_PORT (--rdzv-id, --rdzv-endpoint)? Can each node reach that address and"
        " port: no firewall, no name that stands for 127.0.0.1, and the interface that the nodes share"
        " (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)?",
        "每个节点是否都在运行同一条命令，节点数、进程数（WORLD_SIZE）、MASTER_ADDR 和 MASTER_PORT"
        "（--rdzv-id、--rdzv-endpoint）是否一致？各节点能否连到该地址和端口：没有防火墙，"
        "主机名没有解析成 127.0.0.1，使用的是节点共用的网卡（NCCL_SOCKET_IFNAME、GLOO_SOCKET_IFNAME）。",
    ),
    "launcher-why": (
        "The launcher has not started any rank yet: it waits itself, mostly for the other nodes to join.",
        "启动器还没有启动任何 rank：它自己在等待，多半是在等其他节点加入。",
    ),
    "stands-elsewhere": (
        "That rank is in none of ZeRO-3's collectives, so the trace cache is hardly why it does not come: see"
        " first what it waits for there.",
        "该 rank 不在 ZeRO-3 的任何集合通信中，trace cache 多半不是它没有到达的原因：请先看它在那里等什么。",
    ),
    "ended-why": (
        "A rank that has ended never arrives at the collective that the others wait in: they wait until its"
        " time-out.",
        "已经退出的 rank 不会再到达其他 rank 正在等待的集合通信，其他 rank 会一直等到超时。",
    ),
    "ended-fix": (
        "Find out how it ended: its exit code or signal, its own last lines and, if it was SIGKILL,"
        " `dmesg -T` and the scheduler.",
        "查明它是怎样退出的：退出码或信号、它自己最后的输出；如果是 SIGKILL，再看 `dmesg -T` 和调度器。",
    ),
    "alone-fix": (
        "Give what this call waits for a time-out, and look at the service or storage behind it; a loop there"
        " that cannot end is the other thing to look for.",
        "给该调用等待的东西加超时，并检查背后的服务或存储；另外看那里是否有不会结束的循环。",
    ),
    "slower": (
        "A step took {before} at first and {now} in the last {count}: {percent} more.",
        "起初每步 {before}，最近 {count} 步每步 {now}：慢了 {percent}。",
    ),
    "reached-the-end": (
        " The run reached its end all the same.",
        "训练仍然跑到了终点。",
    ),
    "straggler": (
        "Steps that took an even {before} take {now} since the last {count}: {percent} more, all of them.",
        "原本稳定在 {before} 的每步耗时，最近 {count} 步变为 {now}：每步都慢了 {percent}。",
    ),
    "scale-falling": (
        "The loss scale was halved {count} times in a row, to {scale}: each of these steps was skipped.",
        "loss scale 连续 {count} 次减半，降到 {scale}：这些 step 都被跳过。",
    ),
    "stands-in-evaluation": (
        "The run stands in an evaluation: no step for {silence}; its threshold is {threshold}.",
        "训练停在评估中：已有 {silence} 没有新的 step，阈值为 {threshold}。",
    ),
    "stands-in-evaluation-by-timeout": (
        "An evaluation had begun; no step came after it until a collective timed out.",
        "评估开始之后再没有 step，直到集合通信超时。",
    ),
    "stands-in-evaluation-by-watch": (
        "The run stands in an evaluation.",
        "训练停在评估中。",
    ),
    "moe-stands": (
        "A mixture-of-experts model under ZeRO-3 stands after trace-cache messages.",
        "ZeRO-3 下的 MoE 模型在 trace cache 消息之后停住。",
    ),
    "p2p-stands": (
        "The ranks talk over GPU peer-to-peer, and not even the first collectives finished.",
        "各 rank 通过 GPU P2P 通信，而最初的几次集合通信都没有完成。",
    ),
    "flight-behind": (
        "NCCL's counters point to {ranks}: last enqueued collective {behind}, {others} on the other ranks.",
        "NCCL 计数器指向 {ranks}：它最后入队的集合通信是 {behind}，其他 rank 是 {others}。",
    ),
    "flight-differs": (
        "The ranks waited in different collectives ({shown}): their code took different paths.",
        "各 rank 等在不同的集合通信里（{shown}）：代码走了不同的分支。",
    ),
    "flight-sizes": (
        "The ranks wait in one {operation} with different sizes ({shown} numbers): they took different"
        " paths.",
        "各 rank 在同一次 {operation} 里给出的大小不同（{shown} 个数）：代码走了不同的分支。",
    ),
    "flight-first": (
        "It is one of the first collectives ({operation} #{work}): suspect GPU peer-to-peer or the network"
        " rather than the model.",
        "超时的是最初几次集合通信之一（{operation} #{work}）：先怀疑 GPU P2P 或网络，而不是模型。",
    ),
    "flight-same": (
        "{ranks} wait in the same collective ({operation} #{work}): look for a rank that is missing from this"
        " list; if none is, suspect a GPU, its driver or a link.",
        "{ranks} 都等在同一次集合通信（{operation} #{work}）：找名单里缺少的 rank；"
        "若都在，怀疑 GPU、驱动或链路。",
    ),
    "uneven-end": (
        "{ranks} ended at step {step}, before the others ({others}): look there first.",
        "{ranks} 停在第 {step} 步，早于其他 rank（第 {others} 步）：请先查那里。",
    ),
    "recovered": (
        "Not the end of the run: {steps} steps followed.",
        "训练没有因此结束：之后又完成了 {steps} 步。",
    ),
    "served": (
        "Not the end of the server: {answers} answers or reports of its work followed.",
        "服务没有因此结束：之后还有 {answers} 条应答或吞吐记录。",
    ),
    "ended-well": (
        "The command ended well (exit code 0).",
        "命令正常结束（退出码 0）。",
    ),
    # notes of the whole diagnosis
    "just-ends": (
        "The log ends at step {step} of {total} without an end: it was cut off, is still being written, or"
        " the process was killed without a word.",
        "日志停在第 {step}/{total} 步，没有结尾：可能被截断、仍在写入，或进程被无声地杀掉。",
    ),
    "other-run-job": (
        "{one} and {other} are logs of different jobs ({first}, {second}), diagnosed here as one run: --each"
        " gives every file its own verdict.",
        "{one} 与 {other} 是不同作业（{first}、{second}）的日志，这里当作一次训练来诊断："
        "用 --each 可逐个文件诊断。",
    ),
    "other-run-total": (
        "{one} and {other} look like different runs ({first} and {second} steps to do), diagnosed here as"
        " one: --each gives every file its own verdict.",
        "{one} 与 {other} 像是不同的训练（总步数 {first} 与 {second}），这里当作一次来诊断："
        "用 --each 可逐个文件诊断。",
    ),
    "other-run-time": (
        "{one} and {other} look like runs one after the other, each from its first steps on, diagnosed here"
        " as one: --each gives every file its own verdict.",
        "{one} 与 {other} 像是先后两次从头开始的训练，这里当作一次来诊断：用 --each 可逐个文件诊断。",
    ),
    "other-run-losses": (
        "{one} and {other} look like different runs (other losses at the same epochs, from the first on),"
        " diagnosed here as one: --each gives every file its own verdict.",
        "{one} 与 {other} 像是不同的训练（从一开始，相同 epoch 的 loss 就不同），这里当作一次来诊断："
        "用 --each 可逐个文件诊断。",
    ),
    "just-ends-somewhere": (
        "The log ends in mid-run at step {step}, without a word of an end. If the run should have gone on, it"
        " was killed or cut off there: look at the scheduler, the node's kernel log (dmesg) and its memory.",
        "日志在训练途中停在第 {step} 步，没有任何结束信息。如果训练本应继续，"
        "那么它就是在那里被杀掉或日志被截断：请查看调度器、节点内核日志（dmesg）和内存。",
    ),
    "last-words": (
        "The log's last words speak of an error, and no step follows: see the new lines before its end.",
        "日志最后的内容像是出错了，之后再没有新的步数：请看结尾前新出现的行。",
    ),
    "ends-in-evaluation": (
        "It ends in an evaluation: if the run is still up and stands there, see evaluation-hang.",
        "最后的动静是一次评估：如果训练还在运行却停在那里，请看 evaluation-hang。",
    ),
    **OF_ENDINGS,
    **OF_LOSSES,
    **OF_UNKNOWN,
    "no-rule": (
        "The command failed, and nothing in its log says why.",
        "命令失败了，但日志没有说明原因。",
    ),
    "ends-in-error": (
        "Nothing of a training was recognised, and the text ends in an error that no rule knows.",
        "没有识别到训练内容，文本以一条规则库不认识的错误结束。",
    ),
    "training-was-complete": (
        "Training itself had reached its last step.",
        "训练本身已到达最后一步。",
    ),
    "other-logs": (
        "Look at the logs of {ranks}: this text is only the launcher's, and the cause stands in theirs.",
        "请查看 {ranks} 的日志：这里只有启动器的输出，原因在那些日志里。",
    ),
    "other-logs-unknown": (
        "Look at the logs of the ranks themselves: this text is only the launcher's (torchrun: --redirects 3"
        " --log-dir DIR, or --tee 3).",
        "请查看各 rank 自己的日志：这里只有启动器的输出"
        "（torchrun 可用 --redirects 3 --log-dir DIR 或 --tee 3）。",
    ),
    "ended-by-launcher": (
        "The launcher ended the other processes with SIGTERM after the first failure.",
        "第一个进程失败后，启动器用 SIGTERM 结束了其余进程。",
    ),
    "in-vllm-server": (
        "It happened in the vLLM server, not in a rank of the training: what follows is to be done there.",
        "这发生在 vLLM 服务进程里，不在训练的任何 rank 上：以下处理请在该服务上进行。",
    ),
    "did-not-come": (
        "{ranks} did not report the timeout, so the others waited for it: look there first.",
        "{ranks} 没有报告超时，其余 rank 等的就是它：请先查那里。",
    ),
    "did-not-come-step": (
        "{ranks} did not report the timeout, so the others waited for it: look there first. Its last step is"
        " {step}, the others' is {others}.",
        "{ranks} 没有报告超时，其余 rank 等的就是它：请先查那里。它最后的 step 是 {step}，其余是 {others}。",
    ),
    "absent-ranks": (
        "{ranks} did not report it: look there first.",
        "{ranks} 没有报告这个错误：请先查那里。",
    ),
    "interrupted": (
        "The run was stopped by hand.",
        "训练是被人为中断的。",
    ),
    "stopped-by-hand": (
        "What follows when a run is stopped by hand.",
        "人为中断训练之后的正常现象。",
    ),
}


def say(key: str, language: str = "en", **values: object) -> str:
    """The sentence for ``key`` in the language; English for any that is not Chinese."""
    english, chinese = SENTENCES[key]
    return (chinese if language.startswith("zh") else english).format(**values)


def say_counted(key: str, count: int, language: str = "en") -> str:
    """The sentence for so many; there is one of its own for one."""
    return say(f"{key}-one", language) if count == 1 else say(key, language, count=count)
