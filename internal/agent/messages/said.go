package messages

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// said are texts of the daemon, of the agent and of who serves hosts that people of the agent meet most, as their sources have them, with
// what they are in Chinese. What stands in them for a verb is looked for here too. The first that fits holds.
var said = [][2]string{
	// Why a turn ended without an answer.
	{"the plan was not approved, and nothing was run: %s", "计划未获批准，没有执行任何命令：%s"},
	{"a step was not approved, and the plan ended there: %s", "有一步未获批准，计划到此为止：%s"},
	{"nothing more is taken from the agent in this turn: %s", "本轮不再受理助手的任何提议：%s"},
	{"%d proposals in a row were refused, the last one because of %s", "连续 %s 个提议被拒绝，最后一个的原因是：%s"},
	{"this was the third answer that is no plan: %s", "这已是第三个不成计划的回答：%s"},
	{"a turn has at most %d plans; answer with what you know", "一轮最多 %s 个计划"},
	{"the agent goes on proposing after nothing more is taken from it in this turn", "不再受理之后，助手仍在提议"},
	{"cannot go on with the task: %s", "任务无法继续：%s"},
	{"cannot use what the model answers, three times in a row; ask again, or another model: %s", "模型的回答连续三次无法使用；请重新提问，或换一个模型：%s"},
	{"cannot go on: the model put its answer off %d times", "无法继续：模型 %s 次推迟回答"},
	{
		"cannot go on: the model's answer was cut off at its bound of tokens; ask for less, or raise the bound",
		"无法继续：模型的回答因达到令牌上限而中断；请缩小问题，或提高上限",
	},
	{
		"cannot go on: the model's answer has %d bytes, and at most %d are taken; ask for less at once",
		"无法继续：模型的回答有 %s 字节，最多接受 %s 字节；请一次少问一些",
	},
	{"cannot go on: the model declined, and gave no reason", "无法继续：模型拒绝回答，且未说明原因"},
	{"cannot go on: the model declined: %.512s", "无法继续：模型拒绝回答：%s"},
	{
		"cannot ask the model again: %d of %d %s of this turn are used; begin another turn, or raise its budget",
		"无法再次询问模型：本轮已用 %s，上限 %s（%s）；请开始新的一轮，或提高预算",
	},
	{"stopped by %s", "由 %s 停止"},

	// What a provider of models says.
	{"cannot ask %s at %s: %s", "无法询问 %[2]s 的 %[1]s：%[3]s"},
	{"it does not take the key; see that the key %s, and still valid", "它不接受密钥；请检查%s，以及密钥是否仍然有效"},
	{"that carrel keeps for it is the provider's", "carrel 为它保存的密钥是否属于该服务商"},
	{"it has too many requests of this key%s; wait, or ask for less at once", "此密钥的请求过多%s；请稍候，或一次少问一些"},
	{"it has no model %s, or no %s%s; correct the model or the base URL", "它没有模型 %s，或没有 %s%s；请更正模型名或基础 URL"},
	{"it fails with %d%s; try again later", "它出错，状态码 %s%s；请稍后再试"},
	{"it cannot be reached: %s; see that the base URL is right and that this place may reach it", "无法连接：%s；请检查基础 URL 是否正确，以及此处是否可以访问它"},
	{"its quota or budget for this is used up%s; raise it where it is set", "其配额或预算已用完%s；请在设置之处提高"},
	{" and says: %s", "，并称：%s"},
	{"its answer cannot be used: %w; ask again", "它的回答无法使用：%s；请重新提问"},

	// Why a plan was not let through.
	{"%s denied it: %s", "%s 不允许：%s"},
	{"%s denied it", "%s 不允许"},
	{
		"a person has to approve it, and nobody is asked in this turn: ask at a terminal, or say how long to wait for an answer (--wait)",
		"需要有人批准，而本轮不会询问任何人：请在终端中提问，或用 --wait 指定等待答复的时间",
	},
	{
		"cannot %s: the policy blocks it: %s (rules %s, risk %d); \"carrel policy explain\" says how it is judged, and an " +
			"administrator sets the policy",
		"不能%s：策略禁止：%s（规则 %s，风险 %s）；“carrel policy explain”说明如何判断，策略由管理员设定",
	},
	{
		"%s: it says that it only reads, and the policy sees that it does more (%s); propose it with read_only false",
		"%s：它自称只读，但策略认为不止于此（%s）",
	},
	{"run it", "执行"},
	{"read it", "读取"},
	{"step %d, %s: %s: %s", "第 %s 步，%s：%s：%s"},
	{
		"%s; this is the second refusal in a row, and the next one ends the turn: propose something else, or answer",
		"%s；这已是连续第二次拒绝，再有一次本轮即告结束",
	},
	{"cannot run a step on the host: the user did not offer it; use a workspace", "无法在本机执行：未开放本机"},
	{"cannot find the remote host %q: the user offered none; use another target", "找不到远程主机 %s：没有开放任何远程主机"},
	{"cannot find the remote host %q: there are %s", "找不到远程主机 %s：现有 %s"},
	{"cannot find workspace %q", "找不到工作区 %s"},
	{"no tool was called, because of call %d: %s", "没有调用任何工具，原因在于第 %s 个调用：%s"},

	// Why a person is asked about a plan.
	{"step %d: %s", "第 %s 步：%s"},
	{"the agent says that it is for: %s", "助手说明的目的：%s"},
	{"the agent says of its risk: %s", "助手说明的风险：%s"},
	{"the agent says that it needs root", "助手说明它需要 root 权限"},
	{"the agent says that it also does this: %s", "助手说明的附带影响：%s"},

	// How a plan and its steps ended.
	{"%s; the step behind it was not run", "%s；其后的一步没有执行"},
	{"%s; the %d steps behind it were not run", "%s；其后的 %s 步没有执行"},
	{"step %d failed on %s, and %d of those that run with it failed in all", "第 %s 步在 %s 上失败，同组共有 %s 个失败"},
	{"step %d failed on %s", "第 %s 步在 %s 上失败"},
	{"step %d failed there", "第 %s 步已在该处失败"},
	{"step %d was not begun: %s", "第 %s 步未开始：%s"},
	{"the host that goes first failed", "先行的主机失败"},
	{"the client that serves hosts has gone", "负责主机的客户端已退出"},
	{"cannot go on with the plan: its turn was stopped", "计划无法继续：本轮已被停止"},
	{"it did not end within %v, and was ended", "未在 %s 内结束，已被终止"},
	{"it was ended by signal %d", "被信号 %s 终止"},
	{"the workspace ran out of memory", "工作区内存不足"},
	{"it is not known how the command ended", "不知道命令如何结束"},
	{"it was told to stop, and was ended", "按要求停止，已被终止"},
}

// verbs of package fmt, as said has them.
var verbs = regexp.MustCompile(`%(\.?\d+)?[a-z]`)

// pattern is a text that stands for others.
type pattern struct {
	re *regexp.Regexp
	zh string
}

var patterns = sync.OnceValue(func() (all []pattern) {
	for _, s := range said {
		literals := verbs.Split(s[0], -1)
		for i := range literals {
			literals[i] = regexp.QuoteMeta(literals[i])
		}
		all = append(all, pattern{regexp.MustCompile(`(?s)^` + strings.Join(literals, `(.*?)`) + `$`), s[1]})
	}
	return all
})

// maxSaid bounds the texts that are looked at, in bytes, and maxWithin how many stand in each other.
const maxSaid, maxWithin = 4 << 10, 8

// within is a text of the daemon's in Chinese, with what stands in it.
func within(text string, depth int) string {
	if depth == maxWithin || len(text) > maxSaid {
		return text
	}
	for _, p := range patterns() {
		m := p.re.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		args := make([]any, 0, len(m)-1)
		for _, arg := range m[1:] {
			args = append(args, within(arg, depth+1))
		}
		return fmt.Sprintf(p.zh, args...)
	}
	parts := strings.Split(text, "; ")
	for i := range parts {
		parts[i] = fixed(parts[i])
	}
	return strings.Join(parts, "; ")
}
