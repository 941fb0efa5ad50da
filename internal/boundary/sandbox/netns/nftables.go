package netns

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The ruleset is, in the language of nft(8):
//
//	table ip carrel {
//		chain in {
//			type filter hook prerouting priority mangle; policy accept;
//			meta l4proto tcp ip daddr != 127.0.0.0/8 tproxy to 127.0.0.53:1
//		}
//	}
//
// The numbers are those of linux/netfilter/nf_tables.h and nfnetlink.h; x/sys/unix has most of them.
const (
	table = "carrel"
	chain = "in"

	priorityMangle = -150 // NF_IP_PRI_MANGLE
	destination    = 16   // of a packet's address in its IPv4 header

	nftaTProxyFamily  = 1 // NFTA_TPROXY_*
	nftaTProxyAddress = 2
	nftaTProxyPort    = 3

	// The registers that the expressions below use.
	scratch, address, port = unix.NFT_REG_1, unix.NFT_REG_2, unix.NFT_REG_3
)

// ruleset is the batch that makes it, in one transaction.
func ruleset() []byte {
	batch := func(kind uint16) []byte {
		m := newMessage(kind, 0)
		m.bytes(unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
		return m.done()
	}
	nft := func(kind uint16, fill func(*message)) []byte {
		m := newMessage(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_CREATE)
		m.bytes(unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0)
		fill(m)
		return m.done()
	}
	all := batch(unix.NFNL_MSG_BATCH_BEGIN)
	all = append(all, nft(unix.NFT_MSG_NEWTABLE, func(m *message) { m.text(unix.NFTA_TABLE_NAME, table) })...)
	all = append(all, nft(unix.NFT_MSG_NEWCHAIN, func(m *message) {
		m.text(unix.NFTA_CHAIN_TABLE, table)
		m.text(unix.NFTA_CHAIN_NAME, chain)
		m.nested(unix.NFTA_CHAIN_HOOK, func() {
			m.net32(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_PRE_ROUTING)
			var priority int32 = priorityMangle
			m.net32(unix.NFTA_HOOK_PRIORITY, uint32(priority))
		})
		m.net32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
		m.text(unix.NFTA_CHAIN_TYPE, "filter")
	})...)
	all = append(all, nft(unix.NFT_MSG_NEWRULE, func(m *message) {
		m.text(unix.NFTA_RULE_TABLE, table)
		m.text(unix.NFTA_RULE_CHAIN, chain)
		m.nested(unix.NFTA_RULE_EXPRESSIONS, func() {
			for _, e := range expressions {
				m.nested(unix.NFTA_LIST_ELEM, func() {
					m.text(unix.NFTA_EXPR_NAME, e.name)
					m.nested(unix.NFTA_EXPR_DATA, func() { e.data(m) })
				})
			}
		})
	})...)
	return append(all, batch(unix.NFNL_MSG_BATCH_END)...)
}

// value is a value for a register or to compare with.
func (m *message) value(kind uint16, v []byte) {
	m.nested(kind, func() { m.attr(unix.NFTA_DATA_VALUE, v) })
}

// expressions are those of the rule, each on what the ones before left in the registers.
var expressions = []struct {
	name string
	data func(*message)
}{
	{"meta", func(m *message) {
		m.net32(unix.NFTA_META_DREG, scratch)
		m.net32(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
	}},
	{"cmp", func(m *message) {
		m.net32(unix.NFTA_CMP_SREG, scratch)
		m.net32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		m.value(unix.NFTA_CMP_DATA, []byte{unix.IPPROTO_TCP})
	}},
	{"payload", func(m *message) {
		m.net32(unix.NFTA_PAYLOAD_DREG, scratch)
		m.net32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		m.net32(unix.NFTA_PAYLOAD_OFFSET, destination)
		m.net32(unix.NFTA_PAYLOAD_LEN, 4)
	}},
	{"bitwise", func(m *message) {
		m.net32(unix.NFTA_BITWISE_SREG, scratch)
		m.net32(unix.NFTA_BITWISE_DREG, scratch)
		m.net32(unix.NFTA_BITWISE_LEN, 4)
		m.value(unix.NFTA_BITWISE_MASK, binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-Loopback.Bits())))
		m.value(unix.NFTA_BITWISE_XOR, make([]byte, 4))
	}},
	{"cmp", func(m *message) {
		m.net32(unix.NFTA_CMP_SREG, scratch)
		m.net32(unix.NFTA_CMP_OP, unix.NFT_CMP_NEQ)
		m.value(unix.NFTA_CMP_DATA, Loopback.Addr().AsSlice())
	}},
	{"immediate", func(m *message) {
		m.net32(unix.NFTA_IMMEDIATE_DREG, address)
		m.value(unix.NFTA_IMMEDIATE_DATA, transparent.Addr().AsSlice())
	}},
	{"immediate", func(m *message) {
		m.net32(unix.NFTA_IMMEDIATE_DREG, port)
		m.value(unix.NFTA_IMMEDIATE_DATA, binary.BigEndian.AppendUint16(nil, transparent.Port()))
	}},
	{"tproxy", func(m *message) {
		m.net32(nftaTProxyFamily, unix.NFPROTO_IPV4)
		m.net32(nftaTProxyAddress, address)
		m.net32(nftaTProxyPort, port)
	}},
}
