package messages

import "strings"

// reasons are the fixed reasons of the policy that people of the agent meet, in Chinese: those of the built-in rules, and of the actions of
// agents. What a rule of an administrator's says stays as it was written, and so does what stands behind a reason.
//
//nolint:gosec // words about passwords are none
var reasons = map[string]string{
	"a model wrote it and it has not been approved before":                 "由模型编写，且此前未获批准",
	"acts on another system":                                               "对其他系统进行操作",
	"acts with another user's rights":                                      "以其他用户的权限执行",
	"changes a cluster":                                                    "更改集群",
	"changes a cluster or runs in it":                                      "更改集群或在其中运行",
	"changes a database, or may":                                           "更改或可能更改数据库",
	"changes accounts, keys or passwords":                                  "更改账户、密钥或密码",
	"changes containers or virtual machines":                               "更改容器或虚拟机",
	"changes disks or file systems":                                        "更改磁盘或文件系统",
	"changes installed software":                                           "更改已安装的软件",
	"changes or hides records":                                             "更改或隐藏记录",
	"changes or listens in on the network":                                 "更改或监听网络",
	"changes priorities or limits of processes":                            "更改进程的优先级或限制",
	"changes settings of the machine":                                      "更改本机设置",
	"changes the kernel or how it boots":                                   "更改内核或启动方式",
	"changes the mode, owner or attributes of files":                       "更改文件的权限、所有者或属性",
	"changes the system's directories":                                     "更改系统目录",
	"changes what runs at a provider":                                      "更改云服务商处运行的内容",
	"changes what runs at a provider, or spends":                           "更改云服务商处运行的内容或产生费用",
	"changes what services do":                                             "更改服务的行为",
	"connects to or sends to another host":                                 "连接其他主机或向其发送数据",
	"destroys the workspace's home or empties a project that is mounted":   "销毁工作区的主目录或清空已挂载的项目",
	"egress judges the connection":                                         "连接由出口规则判断",
	"ends or signals processes":                                            "结束进程或向其发送信号",
	"fetches from another host":                                            "从其他主机获取数据",
	"halts or restarts the machine":                                        "关闭或重启本机",
	"is written so as to hide what it does":                                "写法掩盖了实际作用",
	"it cannot be read as shell":                                           "无法作为 shell 命令解析",
	"it destroys a whole tree that people or the machine live by":          "会销毁用户或系统赖以运行的整个目录树",
	"it has no command":                                                    "没有命令",
	"it is a fork bomb":                                                    "是 fork 炸弹",
	"it is not text that a person can read and approve":                    "不是人可以阅读并批准的文本",
	"it overwrites a disk":                                                 "会覆盖磁盘",
	"it would change carrel itself":                                        "会更改 carrel 本身",
	"looks into other processes":                                           "查看其他进程的内部",
	"makes something run later":                                            "使某些内容稍后运行",
	"mounts or unmounts file systems":                                      "挂载或卸载文件系统",
	"publishes something":                                                  "对外发布内容",
	"reads secrets":                                                        "读取机密",
	"reads the passwords of the host, and a model wrote it":                "读取主机的密码，且由模型编写",
	"removes or empties files":                                             "删除或清空文件",
	"rewrites or throws away work of a repository":                         "改写或丢弃仓库中的工作",
	"runs a program or a form of one that is not known":                    "运行未知的程序或未知的用法",
	"runs code that is not judged word by word":                            "运行未经逐字判断的代码",
	"runs something that is not known before it runs":                      "运行前无法得知运行的内容",
	"runs what came from the network or was decoded":                       "运行来自网络或经解码的内容",
	"runs what came from the network or was decoded, and a model wrote it": "运行来自网络或经解码的内容，且由模型编写",
	"sends messages to people":                                             "向他人发送消息",
	"sets variables that make other programs run something":                "设置会使其他程序运行内容的变量",
	"stays inside the workspace":                                           "不超出工作区",
	"the kernel denies it in a workspace":                                  "内核在工作区中不允许",
	"turns a protection off":                                               "关闭保护措施",
	"uses up the machine":                                                  "耗尽本机资源",
	"waits for a person at a terminal":                                     "等待用户在终端输入",
	"waits for connections":                                                "等待连接",
	"writes files":                                                         "写入文件",

	"an agent proposes commands of which a person has to approve one at least":                               "助手提出的命令中至少有一条须由用户批准",
	"changes files of the system, or files that say what runs or who may log in":                             "更改系统文件，或决定运行内容、登录权限的文件",
	"a task has a person asked before it goes on; the answer is told to the task, and gives it nothing else": "任务在继续之前询问用户；答复只告知任务，不授予其他权限",
	"changes files as a model wrote it":                                                                      "按模型所写更改文件",
}

// Reason is a fixed reason of the policy in this language, or one of a step of a plan; any other text stays as it is. What a reason is
// about stands behind it.
func (l Language) Reason(text string) string {
	if l != Chinese {
		return text
	}
	if strings.HasPrefix(text, "step ") || strings.HasPrefix(text, "the agent says ") { // of a plan
		return within(text, 0)
	}
	return fixed(text)
}

// fixed is a fixed reason in Chinese.
func fixed(text string) string {
	if say, ok := reasons[text]; ok {
		return say
	}
	if head, rest, found := strings.Cut(text, ": "); found {
		if say, ok := reasons[head]; ok {
			return say + "：" + rest
		}
	}
	return text
}
