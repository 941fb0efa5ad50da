package messages

// chinese are the texts in Simplified Chinese. Keys to press, commands, flags, targets and the levels of the policy stay as they are.
var chinese = [count]string{
	PlanHead:     "计划 %d%s：%s",
	PlanUndoes:   "（计划 %d 的回滚步骤；只有您按 y 才会执行）",
	Together:     "第 %d 至 %d 步：%s",
	OnlyReads:    "，只读",
	Background:   "，在后台运行，最长 %v",
	ToUndo:       "撤销方法：",
	StepExit:     "退出码 %d",
	StepJob:      "作为后台任务 %s 运行",
	StepDone:     "完成",
	StepMerged:   "完成；已合并，因为其他位置在此期间有改动：%s",
	ToolRead:     "已读取",
	NotBegun:     "未开始，原因是 %s：",
	StepNotBegun: "未开始：%s",
	ChosenFiles:  "只改这些文件：%s；保持原样：%s",
	NoFiles:      "无",
	Remembered:   "计划 %d 不再询问，直接执行：其中的命令已获准在本会话中使用（%s）；“carrel approvals revoke ID”可撤回",
	CutOff:       "本轮中断，现在继续：%s",
	NoAnswer:     "没有得到回答：%s",
	YesSafe:      "已批准，因为您指定了 --yes-safe",
	Settled:      "已有他人答复，或等待时间已过",
	Proposes:     "助手建议记下：%s\n  要保留：在聊天中输入 /remember，或运行“carrel agent memory add”",
	Read:         "读取 %s",

	Denied:      "未获批准",
	Refused:     "被拒绝",
	Invalid:     "无效",
	Blocked:     "已停止受理",
	Planned:     "仅计划",
	WhyPlanOnly: "只要求给出计划，没有执行任何命令",
	WhyNobody:   "没有人及时批准",
	WhyNoMore:   "本轮不再受理任何提议",
	WhyInTime:   "已超时；可用 --timeout 给它更多时间",

	KeyOnce:      "[y] 允许一次",
	KeyThread:    "[t] 本线程内允许",
	KeySession:   "[t] 本会话内允许",
	KeySteps:     "[s] 逐步确认",
	KeyFiles:     "[f] 选择文件",
	KeyNo:        "[n] 不允许",
	AsksYou:      "carrel：按照策略，执行之前需要您答复\n\n%s\n要执行吗？  %s： ",
	AnswerWith:   "请用以下之一答复 %s： ",
	WhyNot:       "为什么不允许（可留空）： ",
	ChangeFile:   "第 %d 个，共 %d 个：修改 %s？ [y] 是  [n] 保持原样： ",
	AnswerYesNo:  "请答 y 或 n： ",
	QuestionHead: "%s  %s  风险 %d（满分 100）",
	RowWhere:     "位置",
	RowAs:        "身份",
	RowVariables: "变量",
	RowAskedBy:   "请求者",
	RowThread:    "线程",
	RowRule:      "规则",
	RowFiles:     "文件",
	RowIsolation: "隔离",
	RowMay:       "能力",
	RowBecause:   "原因",
	RowReason:    "理由",
	InDirectory:  "，目录 %s",
	PersonTyped:  "%s；由人输入",
	ModelWrote:   "%s；由模型或程序写出",
	AllVerified:  "；所要求的各项均已验证",
	NotVerified:  "；所要求的各项未全部验证，因此按主机上的标准判断",
	RunBy:        "由 %s 运行",
	HoldsMinute:  "答复对该主机和端口有效一分钟；用 --always 则一直有效，直到删除其规则。",
	HoldsSession: "选“本会话内允许”后，现在询问的这些命令在本会话中可以再次执行：字词和目标必须完全相同，\n  直到策略改变，或您将其撤回（carrel approvals revoke %s）。",
	NeverKept:    "对它的答复从不记住。",
	ExpiresAt:    "%s 到期。",
	AnsweredBy:   "%s，由 %s%s 于 %s",
	Themselves:   "（本人）",

	You:              "您> ",
	ChatBegins:       "carrel：助手在工作区 %s 中；/help 说明可以输入什么",
	NoScreen:         "没有可清除的屏幕；/new 重新开始",
	DetailsShown:     "显示详情",
	DetailsHidden:    "隐藏详情",
	ToldNext:         "下一个问题会把这些一并告诉助手",
	Stopped:          "已停止",
	BeginsAnew:       "此前的对话不再告诉助手",
	GoesOnFrom:       "下一个问题接着任务 %s 继续",
	OnlyPlans:        "计划只判断和显示，不执行；再次输入 /plan 恢复",
	PlansRun:         "计划恢复执行",
	NoJobs:           "主机上没有后台任务",
	JobHelp:          "carrel job 可查看、跟踪和停止它们",
	Undone:           "已撤销；/undo %s 可重新执行",
	NoChanges:        "没有改动过文件",
	ChangeConflict:   "有冲突",
	ChangeUndone:     "已撤销",
	ChangeMade:       "已改",
	NoteKept:         "笔记 %d 会在今后开始的会话中告诉助手：%s",
	NoteForgotten:    "已忘记；本会话已经知道它，/new 开始新的会话",
	NoNotes:          "没有笔记；/remember 文字 可记下一条",
	ServedWorkspaces: "您可使用的工作区",
	ServedHost:       "本机（以您的身份）",
	OneRemote:        "1 台远程主机",
	Remotes:          "%d 台远程主机",
	And:              "，",
	ShortHost:        "本机",
	ShortOneRemote:   "1 台远程",
	ShortRemotes:     "%d 台远程",
	ShortWorkspaces:  "工作区",

	Because:           "原因 ",
	AndBecause:        "  及 ",
	RuleLead:          "规则 ",
	RunIt:             "要执行吗？风险 %d（满分 100），%s 之前有效",
	SessionKept:       "按 t 则其中需要答复的命令在本会话中可再次执行，字词和目标须完全相同",
	StateNotBegun:     "未开始：%s",
	StateFailed:       "失败：%s",
	StateJob:          "作为后台任务 %s 继续",
	StateNotRun:       "未执行",
	StateWaitsForYou:  "等待您的答复",
	StateWaits:        "等待中",
	StateRuns:         "执行中",
	RiskIs:            "风险 %d",
	FirstRun:          "，因由模型写出而询问",
	DetailFor:         "目的：",
	DetailHeld:        "约束：",
	DetailStderr:      "错误输出：",
	Thinks:            "思考：",
	YouOnce:           "您允许了一次",
	YouSteps:          "您允许了第一步",
	YouStepsAll:       "每一步都会逐一询问，第一步可以选择文件",
	YouFiles:          "您允许了一部分",
	YouThread:         "您允许了它，其中的命令在本会话内有效",
	YouAlways:         "您始终允许",
	YouDeny:           "您没有允许",
	LeftAsIs:          "；保持原样：%s",
	StepElsewhere:     "%s 上的一个步骤已结束",
	AnotherCame:       "又有一个问题",
	TurnEnded:         "本轮已结束",
	YouLeft:           "您已离开",
	KeysOnce:          "[y] 允许一次",
	KeysSteps:         "[s] 逐步",
	KeysSession:       "[t] 本会话",
	KeysFiles:         "[f] 文件",
	KeysAlways:        "[a] 始终",
	KeysNo:            "[n] 不允许",
	KeysEdit:          "[e] 编辑",
	KeysWhole:         "[v] 全部",
	KeysShort:         "[v] 简略",
	EscStops:          "esc 停止",
	ChooseFile:        "第 %d 个，共 %d 个：修改 %s？ [y] 是  [n] 不改  esc 返回",
	FootReason:        "回车即拒绝；理由可留空  esc 返回",
	FootEdit:          "回车即拒绝该计划，改为要求所写内容  esc 返回",
	FootWaits:         "有问题待答：清空输入行后作答（ctrl+u）",
	FootAnswering:     "正在答复",
	FootNew:           "有新问题：请阅读",
	FootMore:          "下面还有：空格继续阅读  esc 停止",
	Queued:            "排队：%s",
	QueuedMore:        "排队：另有 %d 条",
	PromptReason:      "为什么不？ ",
	PromptEdit:        "改为： ",
	Ready:             "就绪",
	Connecting:        "连接中",
	Working:           "工作中",
	RunningOwn:        "执行中",
	NotReady:          "未就绪",
	PlansOnly:         "只出计划",
	Used:              "%d 次请求，%d 个 token",
	ReadsOn:           "pgdn 继续阅读",
	HintNotAnswered:   "未答复",
	HintStopping:      "正在停止",
	HintTakenBack:     "已取回：回车重新排队，ctrl+u 放弃",
	HintOnItsWay:      "您的答复正在发送",
	HintTooSoon:       "按键时您还来不及阅读问题：请再按一次",
	HintOnceOnly:      "未答复：只能允许一次",
	HintOnceOrSession: "未答复：只能允许一次，或按 t 在本会话内允许",
	HintEveryPlan:     "未答复：只能允许一次，每个计划都须单独答复",
	HintWholeFirst:    "未答复：请先按 v 查看全部改动",
	HintRestFirst:     "未答复：请先按空格看完其余部分",
	HintOver:          "该问题已结束",
	HintNoText:        "没有答复：没有文字",
	HintNothing:       "没有可补全的内容",
	HintAgain:         "回车重试",

	CheckWorkspace: "工作区",
	CheckModel:     "模型",
	CheckBudget:    "预算",
	CheckRunsIn:    "运行位置",
	CheckOnlyReads: "只读约束",
	CheckChanges:   "更改",
	CheckRemote:    "远程主机",
	CheckFanOut:    "多主机顺序",
	CheckTool:      "工具",
	CheckToolsMay:  "工具限制",
	CheckToolsRead: "工具可读",
	CheckMakes:     "%s，提出第一个问题时创建",
	CheckNoModel:   "无：请用“carrel update --model NAME %s”指定",
	CheckNone:      "无：%s",
	CheckNotHeld:   "没有约束，因此不执行：%s",
	CheckGroup:     "组 %s，%s：%s",
	OneHost:        "1 台主机",
	Hosts:          "%d 台主机",
	FigureOK:       "正常：%s，%s",
	FigureOver:     "超限：%s，%s",
	FigureMissing:  "未测得：%s",

	AdviceThreshold: "值得查看：%s",
	AdviceAllow:     "您已 %d 次批准在 %s 上执行：%s；若要今后直接通过：%s",
	AdviceSession:   "您已 %d 次批准在 %s 上执行：%s；按 t 可在本会话内直接通过",
	AdviceRunbook:   "运行手册 %s 与您的问题相符：carrel runbook show %s",
	Help: `输入问题后按回车。一轮进行中输入的内容会排队，随后提问。

  enter            发送；alt+enter、ctrl+j  换行
  up, down         此前输入的内容；在空行上，up 取回排队的内容
  tab              补全 /命令、@文件、@主机，以及 /undo 的位置
  esc              停止本轮，并立即提出排队的问题
  ctrl+c           停止；在空行上离开，与 ctrl+d 相同
  pgup, pgdn       翻阅

问题全部显示过之后，在空行上作答：
  y  允许一次                n  拒绝，并说明理由
  t  允许，且其中的命令在本会话内可再次执行：字词和目标须完全相同
  s  只允许第一步，其余各步逐一询问；第一步若改动多个文件，也会询问
  f  逐个查看要改的文件：y 修改，n 保持原样
  e  拒绝，并以该计划的文字为起点写明要做什么
  v  显示全部改动，或只显示标题

`,
	HelpCommands: `  /new        重新开始：此前的对话不再告诉助手
  /resume     接着保留的最近一轮继续
  /clear      清屏；此前的对话仍会告诉助手
  /plan       计划只判断和显示，不执行；再次输入恢复
  /on         说明命令可以在哪里执行
  /tools      说明助手可以使用什么
  /job        显示后台任务
  /undo [ID]  列出本机的文件改动，或撤销其中一个
  /undo workspace NAME [ID]、/undo remote NAME [ID]  工作区或远程主机的改动；
              /undo --on NAME 也指工作区
  /memory     列出会话开始时告诉助手的笔记
  /remember TEXT  记下一条笔记；不带文字则记下助手建议的那条
  /forget N   忘记一条笔记
  /trace      显示详情：风险、规则、步骤的约束、错误输出
  /quit       离开

  @FILE       把本机的一个文件作为数据附上，最大 64 KiB，最多 8 个
  @host:NAME  指清单中的一台主机；@NAME 也可以
  !COMMAND    在您自己的 shell 中运行命令。它属于您而不属于 carrel：
              不判断，不记录，也不告诉助手
  !!COMMAND   同上，并在下一个问题中告诉助手；单独的 !! 则告知
              上一条命令
`,
}
