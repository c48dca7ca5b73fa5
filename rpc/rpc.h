// weft::rpc in one include: agents, peers, typed methods, futures and tasks.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/codec/codec.h>
#include <weft/rpc/codec/error_payload.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/shared_future.h>
#include <weft/rpc/core/task.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/stream/stream.h>
#include <weft/rpc/transport/in_process.h>
