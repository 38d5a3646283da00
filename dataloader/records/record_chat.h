/*
record_chat.h -- a conversation as turns: what others say, and the assistant's answer.

Roles: system (developer); user (human); assistant (gpt, bot, chatgpt, model), also as function_call; tool
(function, observation, ipython), which speaks to the model as a user does. Messages of one side in a row are
joined by a newline. A content may be a list of {"type": "text", "text"}.

Calls of tools (tool_calls, function_call) are what the assistant says: a line {"name": "f", "arguments":
{..}} each, behind its content. Arguments that are text of JSON stand as they are.

An answer that is empty or has "weight": 0 is read, not learnt; what follows the last one that is learnt is
left out.
*/
#pragma once

#include "record_form.h"

// `before` (or NULL): messages of which none is learnt. Sets turns and system. STATUS_BAD_FORMAT names the
// message.
Status record_chat_read(RecordContent* out, const json_t* before, const json_t* messages,
                        const JsonValues* values, Arena* arena);
